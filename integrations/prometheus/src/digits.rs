//! Numbers as text, to the right of a place of fixed width.

/// Decimals of a time, which is exact to the nanosecond.
pub(crate) const DECIMALS: usize = 9;

/// "00" to "99".
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut index = 0;
    while index < 100 {
        pairs[index] = [b'0' + (index / 10) as u8, b'0' + (index % 10) as u8];
        index += 1;
    }
    pairs
};

/// Decimal digits, with blanks before them; `false` if they do not fit. By hand, because formatting by traits takes ten times as long; and
/// by pairs, since a division takes as long as all else.
pub(crate) fn write_integer(place: &mut [u8], mut value: u64) -> bool {
    let mut start = place.len();
    while value >= 100 {
        let Some(next) = start.checked_sub(2) else {
            return false;
        };
        place[next..start].copy_from_slice(&PAIRS[(value % 100) as usize]);
        start = next;
        value /= 100;
    }
    let last = &PAIRS[value as usize][usize::from(value < 10)..];
    let Some(next) = start.checked_sub(last.len()) else {
        return false;
    };
    place[next..start].copy_from_slice(last);
    // What stood here before was written so, too: where its blanks begin it ends.
    for byte in place[..next].iter_mut().rev() {
        if *byte == b' ' {
            break;
        }
        *byte = b' ';
    }
    true
}

/// Nanoseconds as seconds, with all their decimals; `false` if they do not fit.
pub(crate) fn write_seconds(place: &mut [u8], nanos: u64) -> bool {
    let Some(point) = place.len().checked_sub(1 + DECIMALS) else {
        return false;
    };
    let (whole, decimals) = place.split_at_mut(point);
    decimals[0] = b'.';
    // Below a thousand million: the last of nine digits, and four pairs.
    let mut rest = (nanos % 1_000_000_000) as u32;
    decimals[DECIMALS] = b'0' + (rest % 10) as u8;
    rest /= 10;
    for pair in decimals[1..DECIMALS].rchunks_exact_mut(2) {
        pair.copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    write_integer(whole, nanos / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(width: usize, write: impl Fn(&mut [u8]) -> bool) -> Option<String> {
        let mut place = vec![b'x'; width];
        write(&mut place).then(|| String::from_utf8(place).expect("digits"))
    }

    fn integer(width: usize, value: u64) -> Option<String> {
        written(width, |place| write_integer(place, value))
    }

    fn seconds(width: usize, nanos: u64) -> Option<String> {
        written(width, |place| write_seconds(place, nanos))
    }

    #[test]
    fn numbers_are_written_exactly() {
        for value in [0, 7, 10, 1_000, u64::MAX] {
            let text = integer(20, value).expect("room");
            assert_eq!(text.trim_start(), value.to_string());
        }
        for (nanos, expected) in [
            (0, "0.000000000"),
            (3_000_000_000, "3.000000000"),
            (1, "0.000000001"),
            (1_050_000_000, "1.050000000"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            let text = seconds(22, nanos).expect("room");
            assert_eq!(text.trim_start(), expected);
        }
    }

    /// A gauge that falls leaves no digits of before.
    #[test]
    fn what_stood_there_is_gone() {
        let mut place = vec![b' '; 20];
        for value in [u64::MAX, 123_456, 99, 100, 7, 0, 10_000, 9_999] {
            assert!(write_integer(&mut place, value));
            let text = std::str::from_utf8(&place).expect("digits");
            assert_eq!(text, format!("{value:>20}"));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_cut_off() {
        assert_eq!(integer(2, 100), None);
        assert_eq!(integer(0, 0), None);
        assert_eq!(seconds(10, 0), None);
        assert_eq!(seconds(11, 10_000_000_000), None);
        assert_eq!(integer(2, 99).as_deref(), Some("99"));
    }
}
