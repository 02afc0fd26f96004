//! Keys by name.

use quotient_key::{FlipError, Key, Receipt};

/// Every key of this program or library, by name. On platforms without constructors, every key flipped so far.
///
/// A `cdylib` that was built with this crate has its own list, as it has its own engine.
pub fn keys() -> Vec<&'static Key> {
    let mut found: Vec<&'static Key> = quotient_key::keys().collect();
    found.sort_by_key(|key| key.name());
    found
}

/// [`Key::set`] on the key of that name.
///
/// # Errors
/// [`FlipError::UnknownKey`], or as [`Key::set`].
pub fn set_by_name(name: &str, on: bool) -> Result<Receipt, FlipError> {
    match quotient_key::find(name) {
        Some(key) => key.set(on),
        None => Err(FlipError::UnknownKey {
            name: name.to_owned(),
        }),
    }
}
