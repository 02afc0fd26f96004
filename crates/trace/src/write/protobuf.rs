//! The few lines of protobuf that a Perfetto trace needs: varints, and fields that hold bytes.

/// A message that is being put together.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn new() -> Message {
        Message::default()
    }

    /// A number: wire type 0. Negative ones are their two's complement in 64 bits, as `int32` and `int64` want them.
    pub(super) fn number(mut self, field: u32, value: u64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    /// A string or a nested message: wire type 2.
    pub(super) fn bytes(mut self, field: u32, value: &[u8]) -> Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(super) fn text(self, field: u32, value: &str) -> Message {
        self.bytes(field, value.as_bytes())
    }

    pub(super) fn message(self, field: u32, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        assert_eq!(Message::new().number(1, 150).as_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(
            Message::new().text(2, "testing").as_bytes(),
            b"\x12\x07testing"
        );
        let inner = Message::new().number(1, 150);
        assert_eq!(
            Message::new().message(3, &inner).as_bytes(),
            [0x1a, 0x03, 0x08, 0x96, 0x01]
        );
        assert_eq!(Message::new().number(1, u64::MAX).as_bytes().len(), 11);
    }
}
