//! Machine code that a release carries inside the program, so that most machines compile nothing and need no NVRTC.
//!
//! A pack is found by what decides the code, except for the compiler's version: source, headers and options. A pack that was made from
//! other texts therefore matches nothing. After [`MAGIC`] come a SHA-256 of the rest, the compiler's version, a table of entries and the
//! code of each, compressed by itself, so that only what is launched is unpacked.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::OnceLock;

use lily_kernels::CUDA_HEADERS;
use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use sha2::{Digest, Sha256};

/// At the start of each pack; build.rs knows it too.
const MAGIC: &[u8] = b"lily pack of cubins 1\n";

/// What miniz calls its best.
const LEVEL: u8 = 9;

/// The pack in this program: that of `LILY_CUBINS` when it was built, or nothing.
static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cubins.pack"));

type Key = [u8; 32];

/// Of a source with the shim's headers and options, the architecture among them.
fn key(source: &str, options: &[String]) -> Key {
    static HEADERS: OnceLock<Key> = OnceLock::new();
    // Each with its length in front: no two lists of texts have the same bytes.
    fn sum<'a>(texts: impl Iterator<Item = &'a str>) -> Sha256 {
        texts.fold(Sha256::new(), |sum, text| {
            sum.chain_update((text.len() as u64).to_le_bytes()).chain_update(text)
        })
    }
    let headers = HEADERS
        .get_or_init(|| sum(CUDA_HEADERS.iter().flat_map(|(name, text)| [*name, *text])).finalize().into());
    let texts = [source].into_iter().chain(options.iter().map(String::as_str));
    sum(texts).chain_update(headers).finalize().into()
}

/// Collects machine code, and makes a pack of it.
pub struct Packer {
    nvrtc: String,
    entries: BTreeMap<Key, (String, usize, Vec<u8>)>,
}

impl Packer {
    /// For code of this version of NVRTC.
    pub fn new(nvrtc: &str) -> Self {
        Packer { nvrtc: nvrtc.to_owned(), entries: BTreeMap::new() }
    }

    /// Adds the code of a source with options, for an architecture.
    pub fn add(&mut self, architecture: &str, source: &str, options: &[String], code: &[u8]) {
        let packed = compress_to_vec_zlib(code, LEVEL);
        self.entries.insert(key(source, options), (architecture.to_owned(), code.len(), packed));
    }

    /// The pack.
    pub fn finish(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        let text = |to: &mut Vec<u8>, text: &str| {
            to.push(text.len() as u8);
            to.extend(text.as_bytes());
        };
        let number = |to: &mut Vec<u8>, number: usize| to.extend((number as u32).to_le_bytes());
        text(&mut rest, &self.nvrtc);
        number(&mut rest, self.entries.len());
        for (key, (architecture, length, packed)) in &self.entries {
            rest.extend(key);
            text(&mut rest, architecture);
            number(&mut rest, *length);
            number(&mut rest, packed.len());
        }
        for (_, _, packed) in self.entries.values() {
            rest.extend(packed);
        }
        [MAGIC, &Sha256::digest(&rest), &rest].concat()
    }
}

/// Where an entry's code is, and its length when it is unpacked.
struct Entry {
    packed: Range<usize>,
    length: usize,
}

/// A pack that was read.
pub struct Pack {
    bytes: Cow<'static, [u8]>,
    nvrtc: String,
    entries: HashMap<Key, Entry>,
    kernels: BTreeMap<String, usize>,
}

impl Pack {
    /// Reads a pack.
    ///
    /// # Errors
    /// Says what is wrong with one that is not whole.
    pub fn read(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self, String> {
        let bytes = bytes.into();
        let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin as a pack of this version does")?;
        let (sum, rest) = rest.split_at_checked(32).ok_or("it ends in its head")?;
        if sum != &Sha256::digest(rest)[..] {
            return Err(format!("its {} bytes have another SHA-256 than it says", bytes.len()));
        }
        let mut reader = Reader { bytes: rest, at: 0 };
        let mut read = || {
            let (nvrtc, count) = (reader.text()?, reader.number()?);
            let mut table = Vec::new();
            for _ in 0..count {
                let key: Key = reader.take(32)?.try_into().ok()?;
                table.push((key, reader.text()?, reader.number()?, reader.number()?));
            }
            let start = bytes.len() - rest.len();
            let (mut entries, mut kernels) = (HashMap::new(), BTreeMap::new());
            for (key, architecture, length, packed) in table {
                let begin = start + reader.at;
                reader.take(packed)?;
                entries.insert(key, Entry { packed: begin..begin + packed, length });
                *kernels.entry(architecture).or_default() += 1;
            }
            (reader.at == rest.len()).then_some((nvrtc, entries, kernels))
        };
        let (nvrtc, entries, kernels) = read().ok_or("its table is not that of its code")?;
        Ok(Pack { bytes, nvrtc, entries, kernels })
    }

    /// The pack in this program, if it was built with one that is whole.
    pub fn embedded() -> Option<&'static Pack> {
        in_program().as_ref().ok()?.as_ref()
    }

    /// What is wrong with the pack in this program, which then counts as none.
    pub fn damage() -> Option<&'static str> {
        in_program().as_ref().err().map(String::as_str)
    }

    /// The version of the NVRTC that made it: `13.0`.
    pub fn nvrtc(&self) -> &str {
        &self.nvrtc
    }

    /// How many kernels it has for an architecture.
    pub fn kernels(&self, architecture: &str) -> usize {
        self.kernels.get(architecture).copied().unwrap_or(0)
    }

    /// Whether a driver that offers this CUDA loads its code: drivers know the code of their own major version and of older ones.
    pub fn suits(&self, driver: (u32, u32)) -> bool {
        self.nvrtc
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .is_some_and(|major: u32| major <= driver.0)
    }

    /// The code of a source with options.
    pub fn code(&self, source: &str, options: &[String]) -> Option<Vec<u8>> {
        let entry = self.entries.get(&key(source, options))?;
        let code = decompress_to_vec_zlib_with_limit(&self.bytes[entry.packed.clone()], entry.length).ok()?;
        (code.len() == entry.length).then_some(code)
    }
}

fn in_program() -> &'static Result<Option<Pack>, String> {
    static PACK: OnceLock<Result<Option<Pack>, String>> = OnceLock::new();
    PACK.get_or_init(|| usable(EMBEDDED))
}

/// Reads what a program was built with, which may be nothing; warns of damage.
fn usable(bytes: &'static [u8]) -> Result<Option<Pack>, String> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let read = Pack::read(bytes);
    if let Err(damage) = &read {
        tracing::warn!("the machine code in this program is damaged and not used: {damage}");
    }
    read.map(Some)
}

/// Reads fields in order; `None` behind the end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn number(&mut self) -> Option<usize> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?) as usize)
    }

    fn text(&mut self) -> Option<String> {
        let length = self.take(1)?[0];
        String::from_utf8(self.take(length.into())?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(architecture: &str) -> Vec<String> {
        vec![format!("--gpu-architecture={architecture}"), "-DA=1".to_owned()]
    }

    /// Two kernels for one architecture, one for another.
    fn pack() -> Vec<u8> {
        let mut packer = Packer::new("13.5");
        packer.add("sm_90a", "one", &options("sm_90a"), b"code of one, code of one, code of one");
        packer.add("sm_90a", "two", &options("sm_90a"), b"");
        packer.add("sm_80", "one", &options("sm_80"), b"older");
        packer.finish()
    }

    #[test]
    fn what_was_packed_comes_back_for_the_same_source_and_options_only() {
        let pack = Pack::read(pack()).unwrap();
        assert_eq!(
            (pack.nvrtc(), pack.kernels("sm_90a"), pack.kernels("sm_80"), pack.kernels("sm_86")),
            ("13.5", 2, 1, 0)
        );
        let one = pack.code("one", &options("sm_90a"));
        assert_eq!(one.as_deref(), Some(&b"code of one, code of one, code of one"[..]));
        assert_eq!(pack.code("two", &options("sm_90a")).as_deref(), Some(&b""[..]));
        assert_eq!(pack.code("one", &options("sm_80")).as_deref(), Some(&b"older"[..]));
        assert_eq!(pack.code("one ", &options("sm_90a")), None);
        assert_eq!(pack.code("one", &options("sm_86")), None);
        assert_eq!(pack.code("one", &options("sm_90a")[..1]), None);
        // A text that moves from one option into the next is another list.
        assert_ne!(key("a", &["b".into(), "c".into()]), key("a", &["bc".into()]));
        assert_ne!(key("a", &["b".into()]), key("ab", &[]));
    }

    #[test]
    fn a_damaged_pack_is_refused_wherever_the_damage_is() {
        let whole = pack();
        assert!(Pack::read(whole.clone()).is_ok());
        for at in 0..whole.len() {
            assert!(Pack::read(whole[..at].to_vec()).is_err(), "{at} bytes");
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(Pack::read(damaged).is_err(), "byte {at}");
        }
        assert!(Pack::read([&whole[..], b"x"].concat()).is_err());
    }

    /// Whose sum is right, as one that somebody wrote by hand.
    #[test]
    fn a_table_that_does_not_fit_its_code_is_refused() {
        let sealed = |rest: &[u8]| [MAGIC, &Sha256::digest(rest), rest].concat();
        let rest = &pack()[MAGIC.len() + 32..];
        assert!(Pack::read(sealed(rest)).is_ok());
        let count = 1 + "13.5".len();
        for number in [0u32, 2, 4, u32::MAX] {
            let mut other = rest.to_vec();
            other[count..count + 4].copy_from_slice(&number.to_le_bytes());
            assert!(Pack::read(sealed(&other)).is_err(), "{number} entries");
        }
        assert!(Pack::read(sealed(&rest[..rest.len() - 1])).is_err());
    }

    #[test]
    fn code_that_does_not_unpack_counts_as_none() {
        let mut pack = Pack::read(pack()).unwrap();
        for entry in pack.entries.values_mut() {
            entry.length += 1;
        }
        assert_eq!(pack.code("one", &options("sm_80")), None);
    }

    #[test]
    fn damage_is_warned_of_and_the_lack_of_a_pack_is_not() {
        use std::sync::{Arc, Mutex};
        use tracing_subscriber::fmt::MakeWriter;
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        impl<'a> MakeWriter<'a> for Lines {
            type Writer = Lines;
            fn make_writer(&'a self) -> Lines {
                self.clone()
            }
        }
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            assert!(usable(b"").unwrap().is_none());
            assert!(usable(pack().leak()).unwrap().is_some());
            assert!(lines.0.lock().unwrap().is_empty());
            assert!(usable(b"lily pack of cubins 1\n").is_err());
        });
        let said = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(
            said.contains("WARN") && said.contains("damaged") && said.contains("ends in its head"),
            "{said}"
        );
    }

    #[test]
    fn a_driver_that_is_older_than_the_compiler_loads_nothing_of_it() {
        let pack = Pack::read(pack()).unwrap();
        assert_eq!([(12, 8), (13, 0), (14, 0)].map(|driver| pack.suits(driver)), [false, true, true]);
    }
}
