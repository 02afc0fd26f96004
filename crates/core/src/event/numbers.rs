//! How the numbers of `quotient-core` are written: as plain numbers.

/// A [`CpuId`](quotient_core::CpuId) as its number.
pub(crate) mod cpu {
    use quotient_core::CpuId;
    use serde::{Deserialize, Deserializer, Serializer};

    // The signature is serde's.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub fn serialize<S: Serializer>(cpu: &CpuId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(cpu.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CpuId, D::Error> {
        u32::deserialize(deserializer).map(CpuId)
    }
}
