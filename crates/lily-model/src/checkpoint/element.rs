//! Element types that safetensors defines.

/// The type of a tensor's elements. Only U32, BF16 and F32 are computed with; the others may occur in tensors that are
/// skipped, whose byte ranges are checked all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum ElementType {
    Bool,
    F4,
    F6E2M3,
    F6E3M2,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    U8,
    I8,
    U16,
    I16,
    F16,
    BF16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
    C64,
}

use ElementType::*;

/// Every type: its name in a header and its bits.
const TYPES: [(ElementType, &str, u64); 20] = [
    (Bool, "BOOL", 8),
    (F4, "F4", 4),
    (F6E2M3, "F6_E2M3", 6),
    (F6E3M2, "F6_E3M2", 6),
    (F8E4M3, "F8_E4M3", 8),
    (F8E5M2, "F8_E5M2", 8),
    (F8E8M0, "F8_E8M0", 8),
    (U8, "U8", 8),
    (I8, "I8", 8),
    (U16, "U16", 16),
    (I16, "I16", 16),
    (F16, "F16", 16),
    (BF16, "BF16", 16),
    (U32, "U32", 32),
    (I32, "I32", 32),
    (F32, "F32", 32),
    (U64, "U64", 64),
    (I64, "I64", 64),
    (F64, "F64", 64),
    (C64, "C64", 64),
];

impl ElementType {
    /// The type of this name in a safetensors header.
    pub(crate) fn from_name(name: &str) -> Option<ElementType> {
        TYPES.iter().find(|(_, known, _)| *known == name).map(|(element, ..)| *element)
    }

    /// Its name in a safetensors header.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// Bytes of `shape` elements; `None` where that is no whole number of bytes or does not fit.
    pub(crate) fn bytes_of(self, shape: &[u64]) -> Option<u64> {
        let elements = shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n))?;
        let bits = elements.checked_mul(TYPES[self as usize].2)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (i, (element, name, _)) in TYPES.iter().enumerate() {
            assert_eq!(*element as usize, i);
            assert_eq!(ElementType::from_name(name), Some(*element));
        }
        assert_eq!(ElementType::from_name("U128"), None);
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(BF16.bytes_of(&[3, 5]), Some(30));
        assert_eq!(F32.bytes_of(&[]), Some(4));
        assert_eq!(F4.bytes_of(&[3]), None);
        assert_eq!(U8.bytes_of(&[1 << 40, 1 << 40]), None);
        assert_eq!(F64.bytes_of(&[1 << 60]), None);
        assert_eq!(U8.bytes_of(&[1 << 40, 1 << 40, 0]), None);
    }
}
