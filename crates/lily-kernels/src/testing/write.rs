//! Cases as files, for programs in other languages.

use std::fmt::Write as _;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

use super::{Case, Check, Store};
use crate::{SLOTS, Traffic};

/// Writes `cases.txt`, which shims/tests/kernels.cpp describes, and `cases.bin`, the bytes it points into.
pub fn write_cases(cases: &[Case], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut blob = Blob { out: BufWriter::new(std::fs::File::create(folder.join("cases.bin"))?), at: 0 };
    let mut index = String::new();
    for (i, case) in cases.iter().enumerate() {
        let dispatch = case.dispatch();
        let text = dispatch.text;
        let list = |values: &[usize]| values.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        let words = |values: &[u32]| values.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let description = format!("{:?}", case.kernel).replace(char::is_whitespace, "");
        let _ = writeln!(index, "case {i} {description}");
        let _ = writeln!(index, "kernel {} {}", text.name, case.activation.name());
        let _ = writeln!(index, "constants {} {}", dispatch.constants.len(), words(&dispatch.constants));
        let _ = writeln!(index, "grid {}\nthreads {}", list(&dispatch.grid), list(&dispatch.threads));
        let _ = writeln!(
            index,
            "memory {} {}",
            dispatch.threadgroup_bytes.len(),
            list(&dispatch.threadgroup_bytes)
        );
        let traffic = case.kernel.traffic(case.activation);
        assert_eq!(traffic.len(), case.operands.len(), "{description}");
        for p in text.parameters.iter().filter(|p| p.attribute == "buffer") {
            if p.kind.ends_with('&') {
                blob.buffer(&mut index, &bytes_of(&dispatch.params), Store::U8, &Check::Same, None)?;
            } else if p.name == SLOTS {
                blob.buffer(&mut index, &bytes_of(&case.slots), Store::U32, &Check::Same, None)?;
            } else {
                let same = |o: &&crate::Operand| o.name.replace('.', "_") == p.name;
                let Some(n) = case.kernel.operands().iter().position(|o| same(&o)) else {
                    panic!("{}: {} is no operand", text.path, p.name);
                };
                let o = &case.operands[n];
                blob.buffer(&mut index, &o.bytes, o.store, &o.check, Some((traffic[n], case.touches_all)))?;
            }
        }
        index.push_str("end\n");
    }
    blob.out.flush()?;
    std::fs::write(folder.join("cases.txt"), index)
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

struct Blob {
    out: BufWriter<std::fs::File>,
    at: usize,
}

impl Blob {
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        let at = self.at;
        self.out.write_all(bytes)?;
        let padded = bytes.len().next_multiple_of(8);
        self.out.write_all(&[0; 8][..padded - bytes.len()])?;
        self.at += padded;
        Ok(at)
    }

    fn buffer(
        &mut self,
        index: &mut String,
        bytes: &[u8],
        store: Store,
        check: &Check,
        traffic: Option<(Traffic, bool)>,
    ) -> Result<()> {
        let init = self.put(bytes)?;
        let doubles = |v: &[f64]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (kind, want, error, count) = match check {
            Check::Same => ("same", 0, 0, 0),
            Check::Any => ("any", 0, 0, 0),
            Check::Near { want, error } => {
                ("near", self.put(&doubles(want))?, self.put(&doubles(error))?, want.len())
            }
        };
        let touched = match traffic {
            None => "none 0 0".to_owned(),
            Some((t, true)) => format!("exact {} {}", t.read, t.written),
            Some((t, false)) => format!("most {} {}", t.read, t.written),
        };
        let _ = writeln!(
            index,
            "buffer {init} {} {kind} {} {want} {error} {count} {touched}",
            bytes.len(),
            store.name()
        );
        Ok(())
    }
}
