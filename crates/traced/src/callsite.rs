//! What is known of each callsite.

use core::fmt;

use quotient_keys::Key;
use tracing::Level;

/// How the documentation of a callsite's key begins; the macro writes it.
const MARK: &str = "tracing event\n";

/// One event in the source.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Callsite {
    /// Its key, named `module::path:line`.
    pub key: &'static Key,
    /// Its level.
    pub level: Level,
    /// Its target.
    pub target: &'static str,
    /// Its file and line, separated by a colon.
    pub place: &'static str,
}

impl Callsite {
    /// `None`: a key that is no callsite's.
    fn of(key: &'static Key) -> Option<Self> {
        let lines = key.documentation().strip_prefix(MARK)?;
        let (level, lines) = lines.split_once('\n')?;
        // A target may have line feeds of its own: the place is what stands last.
        let (target, place) = lines.trim_end_matches('\n').rsplit_once('\n')?;
        Some(Self {
            key,
            level: level.parse().ok()?,
            target,
            place,
        })
    }

    /// The file that it is in, as the compiler was given it.
    pub fn file(&self) -> &'static str {
        self.place
            .rsplit_once(':')
            .map_or(self.place, |(file, _)| file)
    }

    /// Whether its event goes to `tracing`.
    pub fn is_on(&self) -> bool {
        self.key.is_enabled()
    }
}

impl fmt::Display for Callsite {
    /// As the kernel's control file: place, `[module]`, `=on` or `=off`, level and target.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.key.name();
        let module = name.rsplit_once(':').map_or(name, |(module, _)| module);
        let value = if self.is_on() { "on" } else { "off" };
        write!(
            formatter,
            "{} [{module}] ={value} {} {}",
            self.place, self.level, self.target
        )
    }
}

/// All callsites of this program, or of this library if it is one that was linked apart, by name. On systems without
/// constructors (none of Linux, macOS, Windows, Android, FreeBSD) those that were on before.
///
/// # Complexity
/// n log n in the number of keys.
pub fn callsites() -> Vec<Callsite> {
    quotient_keys::keys()
        .into_iter()
        .filter_map(Callsite::of)
        .collect()
}
