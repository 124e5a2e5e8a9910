//! The byte-level alphabet, and the bytes of every token.
//!
//! Byte-level BPE writes bytes as characters that can be printed: bytes that are printable in Latin-1 stand for
//! themselves, the others are mapped to U+0100 and up in order (Radford et al. 2019, GPT-2).

use std::sync::LazyLock;

/// Bytes by code point; the alphabet ends below U+0144.
static ALPHABET: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let (mut alphabet, mut next) = ([None; 0x144], 256);
    for byte in 0..=255u8 {
        let shown = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if shown { usize::from(byte) } else { next };
        next += usize::from(!shown);
        alphabet[code] = Some(byte);
    }
    alphabet
});

/// The byte that one character of a token's name stands for.
pub(super) fn byte_of(c: char) -> Option<u8> {
    ALPHABET.get(c as usize).copied().flatten()
}

/// The character that stands for a byte in a token's name.
pub(super) fn char_of(byte: u8) -> char {
    let code = ALPHABET.iter().position(|known| *known == Some(byte));
    // Every byte is in the alphabet.
    code.and_then(|code| char::from_u32(code as u32)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes of all tokens, one after another.
#[derive(Default)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// Token i is `bytes[ends[i - 1]..ends[i]]`; ids that stand for nothing are empty.
    ends: Vec<usize>,
    of_byte: Vec<Option<u32>>,
}

impl TokenBytes {
    /// From (id, bytes) in any order. A later entry of the same id is ignored.
    pub(super) fn new(mut tokens: Vec<(u32, Vec<u8>)>) -> Self {
        tokens.sort_by_key(|(id, _)| *id);
        let mut table = TokenBytes { of_byte: vec![None; 256], ..TokenBytes::default() };
        for (id, bytes) in tokens {
            let id_index = id as usize;
            if id_index < table.ends.len() {
                continue;
            }
            table.ends.resize(id_index, table.bytes.len());
            table.bytes.extend_from_slice(&bytes);
            table.ends.push(table.bytes.len());
            if let [byte] = bytes[..] {
                table.of_byte[usize::from(byte)].get_or_insert(id);
            }
        }
        table
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        (start < end).then(|| &self.bytes[start..end])
    }

    /// Bytes of every id.
    pub(super) fn lengths(&self) -> Vec<u32> {
        let starts = [0].iter().chain(&self.ends);
        self.ends.iter().zip(starts).map(|(end, start)| (end - start) as u32).collect()
    }

    pub(super) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.of_byte.get(usize::from(byte)).copied().flatten()
    }
}
