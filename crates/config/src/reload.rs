//! Reading a file again while the program runs.
//!
//! One tokio task, and only if [`Reload::start`] was called. It waits for `SIGHUP` (if asked for) or for the next look at the file (if
//! asked for), reads the file on tokio's blocking pool, and applies it if it is good and says something else than what was applied last.
//! What is bad keeps what is in force, and is said once as an event of level `WARN` and target `quotient`; a change that took effect
//! is one of level `INFO`.
//!
//! The text is compared and not the file's time, so that nothing is missed between two writes of one tick of the file system, and links
//! that are turned (as Kubernetes' config maps are) need nothing more. What is good and the scheduler refuses, since a group is just being
//! removed, is tried again at each look. Write a new file and rename it over the old one: a half-written
//! file that happens to be good would be applied.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quotient::{Applied, Config, Scheduler};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::parse::{TEXT_BYTES_MAX, parse};

/// How often a file may be looked at. Unit: time. From 10 ms (tests) to an hour.
pub const EVERY_RANGE: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(3_600);

/// What is to be reloaded, and when.
#[derive(Debug)]
#[must_use = "nothing happens before `start`"]
pub struct Reload {
    scheduler: Scheduler,
    path: PathBuf,
    every: Option<Duration>,
    on_hangup: bool,
}

/// Why a file is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReloadError {
    /// The interval is outside [`EVERY_RANGE`].
    Every {
        /// The value that was given.
        value: Duration,
    },
    /// The file could not be read.
    File {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The text is wrong, or the scheduler refuses what it says: each line begins with the file, and a line and column where known.
    Refused(String),
    /// There is no tokio runtime here, or it refuses the signal.
    Runtime(String),
}

impl fmt::Display for ReloadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every { value } => write!(
                formatter,
                "every is {value:?}, allowed are {:?} to {:?}",
                EVERY_RANGE.start(),
                EVERY_RANGE.end()
            ),
            Self::File { path, reason } => {
                write!(formatter, "cannot read {}: {reason}", path.display())
            }
            Self::Refused(reason) | Self::Runtime(reason) => formatter.write_str(reason),
        }
    }
}

impl std::error::Error for ReloadError {}

/// What came of the looks at the file so far. The counters wrap after 2^64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Times that the file was applied, the first included.
    pub applied: u64,
    /// Times that it was refused, or could not be read; a file that stays bad counts once, and once for each signal.
    pub refused: u64,
    /// Why it was refused last; `None` if what the file says is in force.
    pub error: Option<ReloadError>,
}

/// A running reload: dropping it ends the task, and what is in force stays.
#[derive(Debug)]
pub struct Reloader {
    task: JoinHandle<()>,
    status: watch::Receiver<Status>,
}

impl Reload {
    /// The file at `path` for this scheduler.
    pub fn new(scheduler: &Scheduler, path: impl Into<PathBuf>) -> Self {
        Self {
            scheduler: scheduler.clone(),
            path: path.into(),
            every: None,
            on_hangup: false,
        }
    }

    /// Looks at the file so often; see [`EVERY_RANGE`]. One read each, on the blocking pool.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = Some(interval);
        self
    }

    /// Reads the file at every `SIGHUP` of the process, which no longer ends it then. Unix only: elsewhere it does nothing.
    pub fn on_hangup(mut self) -> Self {
        self.on_hangup = true;
        self
    }

    /// Reads and applies the file here and now, then starts the task on the tokio runtime that it is called in. With neither
    /// [`Reload::every`] nor [`Reload::on_hangup`] the task ends at once. It also ends with the scheduler's shutdown.
    ///
    /// # Errors
    /// [`ReloadError`]: the file is not in force, and no task was started.
    pub fn start(self) -> Result<Reloader, ReloadError> {
        if let Some(value) = self.every.filter(|every| !EVERY_RANGE.contains(every)) {
            return Err(ReloadError::Every { value });
        }
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| ReloadError::Runtime(error.to_string()))?;
        let hangups = Hangups::new(self.on_hangup)?;
        let text = read(&self.path)?;
        let mut status = Status::default();
        let config = read_config(&self.scheduler, &self.path, &text)?;
        let applied = apply(&self.scheduler, &self.path, &config)?;
        status.applied = 1;
        say(&self.path, &applied);
        let (sender, receiver) = watch::channel(status);
        let follow = Follow {
            seen: Ok(text),
            refused: None,
            reload: Arc::new(self),
            status: sender,
        };
        Ok(Reloader {
            task: runtime.spawn(follow.run(hangups)),
            status: receiver,
        })
    }
}

impl Reloader {
    /// What came of it so far.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until a look at the file has had a result since the last call; `None` when the task has ended.
    pub async fn changed(&mut self) -> Option<Status> {
        self.status.changed().await.ok()?;
        Some(self.status.borrow_and_update().clone())
    }
}

impl Drop for Reloader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task's own part.
struct Follow {
    reload: Arc<Reload>,
    /// What the file said at the last look, or why it could not be read.
    seen: Result<String, ReloadError>,
    /// Why the scheduler refused that: it may take it later, when a group is gone that was being removed.
    refused: Option<ReloadError>,
    status: watch::Sender<Status>,
}

impl Follow {
    async fn run(mut self, mut hangups: Hangups) {
        let every = self.reload.every;
        if every.is_none() && !hangups.are_awaited() {
            return;
        }
        loop {
            let told = tokio::select! {
                () = hangups.next() => true,
                () = sleep(every) => false,
            };
            if self.reload.scheduler.is_shut_down() {
                return;
            }
            let reload = self.reload.clone();
            let looked = tokio::task::spawn_blocking(move || read(&reload.path)).await;
            // It ends with the runtime.
            let Ok(text) = looked else { return };
            let known = self.seen == text;
            if known && !told && self.refused.is_none() {
                continue;
            }
            self.seen = text.clone();
            let scheduler = &self.reload.scheduler;
            let config = text.and_then(|text| read_config(scheduler, &self.reload.path, &text));
            let is_good = config.is_ok();
            let applied = config.and_then(|config| apply(scheduler, &self.reload.path, &config));
            let refused = applied.as_ref().err().filter(|_| is_good).cloned();
            let is_said = known && refused.is_some() && refused == self.refused;
            self.refused = refused;
            if is_said && !told {
                continue;
            }
            let path = &self.reload.path;
            match &applied {
                Ok(applied) => say(path, applied),
                Err(error) => tracing::warn!(
                    target: "quotient", file = %path.display(), %error,
                    "the new settings were refused; those before stay in force"
                ),
            }
            self.status.send_modify(|status| {
                match &applied {
                    Ok(_) => status.applied = status.applied.wrapping_add(1),
                    Err(_) => status.refused = status.refused.wrapping_add(1),
                }
                status.error = applied.err();
            });
        }
    }
}

fn say(path: &Path, applied: &Applied) {
    let (created, changed) = (applied.created, applied.changed);
    tracing::info!(
        target: "quotient", file = %path.display(), created, changed,
        "the settings are in force"
    );
}

async fn sleep(every: Option<Duration>) {
    match every {
        Some(every) => tokio::time::sleep(every).await,
        None => std::future::pending().await,
    }
}

/// The file's text; one byte more than allowed is enough to be refused. Never waits: opening a FIFO would, until somebody writes to it, and
/// with it the runtime's end. So the file is opened without, and has to be a regular one.
fn read(path: &Path) -> Result<String, ReloadError> {
    let fail = |reason: std::io::Error| ReloadError::File {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let mut text = String::new();
    let bound = TEXT_BYTES_MAX as u64 + 1;
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NONBLOCK.bits().cast_signed(),
    );
    let file = options.open(path).map_err(fail)?;
    let found = file.metadata().map_err(fail)?;
    if !found.is_file() {
        return Err(fail(std::io::Error::other("it is no regular file")));
    }
    file.take(bound).read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}

fn read_config(scheduler: &Scheduler, path: &Path, text: &str) -> Result<Config, ReloadError> {
    let name = path.display();
    parse(text, scheduler.vcpus()).map_err(|problems| {
        let lines: Vec<String> = problems
            .to_string()
            .lines()
            .map(|line| format!("{name}:{line}"))
            .collect();
        ReloadError::Refused(lines.join("\n"))
    })
}

fn apply(scheduler: &Scheduler, path: &Path, config: &Config) -> Result<Applied, ReloadError> {
    let applied = scheduler.apply(config);
    applied.map_err(|error| ReloadError::Refused(format!("{}: {error}", path.display())))
}

/// Signals to reload.
struct Hangups {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    #[cfg(unix)]
    fn new(wanted: bool) -> Result<Self, ReloadError> {
        use tokio::signal::unix::{SignalKind, signal};
        let signal = wanted.then(|| signal(SignalKind::hangup())).transpose();
        let signal = signal.map_err(|error| ReloadError::Runtime(error.to_string()))?;
        Ok(Self { signal })
    }

    #[cfg(not(unix))]
    fn new(_wanted: bool) -> Result<Self, ReloadError> {
        Ok(Self {})
    }

    fn are_awaited(&self) -> bool {
        #[cfg(unix)]
        return self.signal.is_some();
        #[cfg(not(unix))]
        return false;
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}
