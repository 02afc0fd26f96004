//! Arrays of keys: elements that know their names, made by the compiler.

use core::mem::MaybeUninit;

use crate::key::StaticKey;

/// Digits of the largest index, and the brackets.
const SUFFIX_BYTES_MAX: usize = 22;

/// Bytes that the name of an element takes at most.
pub const fn room_of(array: &str) -> usize {
    array.len() + SUFFIX_BYTES_MAX
}

/// The names of `LENGTH` elements, `array[0]`, `array[1]` and so on, in `ROOM` bytes each.
#[derive(Debug)]
pub struct ElementNames<const LENGTH: usize, const ROOM: usize> {
    text: [[u8; ROOM]; LENGTH],
    bytes: [usize; LENGTH],
}

impl<const LENGTH: usize, const ROOM: usize> ElementNames<LENGTH, ROOM> {
    /// Writes them. `ROOM` is [`room_of`] of the same name.
    pub const fn new(array: &str) -> Self {
        let mut names = Self {
            text: [[0; ROOM]; LENGTH],
            bytes: [0; LENGTH],
        };
        let mut index = 0;
        while index < LENGTH {
            names.bytes[index] = write_name(array.as_bytes(), index, &mut names.text[index]);
            index += 1;
        }
        names
    }

    const fn get(&self, index: usize) -> &str {
        match core::str::from_utf8(self.text[index].split_at(self.bytes[index]).0) {
            Ok(name) => name,
            Err(_) => panic!("a name and ASCII digits"),
        }
    }
}

const fn write_name(array: &[u8], index: usize, place: &mut [u8]) -> usize {
    let mut end = 0;
    while end < array.len() {
        place[end] = array[end];
        end += 1;
    }
    place[end] = b'[';
    let mut unit = 1;
    while index / unit > 9 {
        unit *= 10;
    }
    while unit > 0 {
        end += 1;
        place[end] = b'0' + (index / unit % 10) as u8;
        unit /= 10;
    }
    place[end + 1] = b']';
    end + 2
}

/// The value of a `static` array of keys.
pub const fn array<const DEFAULT: bool, const LENGTH: usize, const ROOM: usize>(
    names: &'static ElementNames<LENGTH, ROOM>,
    documentation: &'static str,
) -> [StaticKey<DEFAULT>; LENGTH] {
    let mut keys: [MaybeUninit<StaticKey<DEFAULT>>; LENGTH] =
        [const { MaybeUninit::uninit() }; LENGTH];
    let mut index = 0;
    while index < LENGTH {
        keys[index] = MaybeUninit::new(StaticKey::__new(names.get(index), documentation));
        index += 1;
    }
    // SAFETY: the loop has initialised every element, and an array of `MaybeUninit<T>` has the layout of one of `T`.
    unsafe { core::mem::transmute_copy(&keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_index() {
        const NAMES: ElementNames<101, { room_of("some::KEYS") }> = ElementNames::new("some::KEYS");
        for index in 0..101 {
            assert_eq!(NAMES.get(index), format!("some::KEYS[{index}]"));
        }
    }
}
