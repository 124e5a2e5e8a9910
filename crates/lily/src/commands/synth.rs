//! `lily synth`: a random model of true size on disk.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use lily_model::Preset;
use lily_model::synth::{SizeError, Streamed, Synth, SynthFile, SynthFolder, Written};
use lily_text::{LARGEST_FILE, SyntheticTokenizer};

use super::writing::{check_room, of_folder, stream};
use crate::cli::{SizeFlags, SynthFlags};
use crate::interrupt::{self, Interruptible};
use crate::setup;
use crate::terminal::remark;

pub(crate) fn run(flags: &SynthFlags) -> Result<ExitCode> {
    interrupt::listen()?;
    let work = Interruptible::begin();
    Ok(match write(flags, &|| work.interrupted())? {
        Written::All => ExitCode::SUCCESS,
        Written::Cancelled => {
            remark("stopped; what had been written is removed");
            ExitCode::from(interrupt::EXIT_CODE)
        }
    })
}

fn write(flags: &SynthFlags, cancelled: &(dyn Fn() -> bool + Sync)) -> Result<Written> {
    let mut preset = setup::preset(&flags.preset)?;
    // The name of a size is the flag's.
    let of_flag = |error: SizeError| anyhow::anyhow!("--{error}");
    resize(&mut preset, &flags.sizes).map_err(of_flag)?;
    let rows = preset.geometry.vocab;
    let synth = Synth::new(preset, flags.seed).map_err(of_flag)?;
    // Room is measured after this has removed what a killed run left.
    let folder = SynthFolder::claim(&flags.out, flags.force).map_err(of_folder)?;
    let Some(tokenizer) = tokenizer_for(rows, cancelled)? else { return Ok(Written::Cancelled) };
    let end_tokens = tokenizer.as_ref().map_or(&[][..], |file| &file.tokenizer.end_tokens);
    let mut files = synth.files(end_tokens, flags.shard_size.0 as u64);
    if let Some(file) = tokenizer {
        files.documents.extend([
            ("tokenizer_config.json".to_owned(), file.tokenizer.tokenizer_config_json.clone()),
            ("chat_template.jinja".to_owned(), setup::DEMO_TEMPLATE.as_bytes().to_vec()),
        ]);
        files.streamed.push(("tokenizer.json".to_owned(), Box::new(file)));
    }
    check_room(folder.path(), files.bytes())?;
    let weights = files.shards.iter().map(SynthFile::bytes).sum();
    stream(folder, &files, (weights, files.shards.len()), flags.threads, cancelled)
}

/// tokenizer.json.
#[derive(Debug)]
struct TokenizerFile {
    tokenizer: SyntheticTokenizer,
    bytes: u64,
}

impl Streamed for TokenizerFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        self.tokenizer.write_json(out)
    }
}

/// The tokenizer of a vocabulary, if there is one; nothing if this was cancelled.
fn tokenizer_for(rows: usize, cancelled: &dyn Fn() -> bool) -> Result<Option<Option<TokenizerFile>>> {
    let Some(tokenizer) = SyntheticTokenizer::new(rows) else {
        remark(format_args!(
            "no tokenizer: a vocabulary of {rows} has no room for every byte and every marker, {} tokens",
            SyntheticTokenizer::FEWEST_ROWS
        ));
        return Ok(Some(None));
    };
    let mut size = Size { bytes: 0, stopped: false, cancelled };
    let mut buffer = BufWriter::new(&mut size);
    let counted = tokenizer.write_json(&mut buffer).and_then(|()| buffer.flush());
    drop(buffer);
    if size.stopped {
        return Ok(None);
    }
    if size.bytes > LARGEST_FILE {
        remark(format_args!(
            "no tokenizer: of a vocabulary of {rows} tokenizer.json would have more than {LARGEST_FILE} bytes, the \
             most that is read"
        ));
        return Ok(Some(None));
    }
    counted.context("tokenizer.json")?;
    Ok(Some(Some(TokenizerFile { tokenizer, bytes: size.bytes })))
}

/// Counts what is written, up to the largest file that is read.
struct Size<'a> {
    bytes: u64,
    stopped: bool,
    cancelled: &'a dyn Fn() -> bool,
}

impl Write for Size<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stopped = self.stopped || (self.cancelled)();
        self.bytes += bytes.len() as u64;
        if self.stopped || self.bytes > LARGEST_FILE {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The preset with the sizes that the flags give.
fn resize(preset: &mut Preset, sizes: &SizeFlags) -> Result<(), SizeError> {
    let g = &mut preset.geometry;
    for (size, given) in [
        (&mut g.vocab, sizes.vocab),
        (&mut g.hidden, sizes.hidden),
        (&mut g.max_context, sizes.max_context),
        (&mut g.moe.experts, sizes.experts),
        (&mut g.moe.top_k, sizes.active_experts),
        (&mut g.moe.expert_width, sizes.expert_width),
        (&mut g.moe.shared_width, sizes.shared_width),
        (&mut g.attention.query_heads, sizes.query_heads),
        (&mut g.attention.kv_heads, sizes.kv_heads),
        (&mut g.attention.head_dim, sizes.head_dim),
        (&mut g.attention.rotary_dim, sizes.rotary_dim),
        (&mut g.delta.key_heads, sizes.key_heads),
        (&mut g.delta.value_heads, sizes.value_heads),
        (&mut g.delta.key_dim, sizes.key_dim),
        (&mut g.delta.value_dim, sizes.value_dim),
        (&mut g.delta.conv_taps, sizes.conv_taps),
        (&mut preset.format.bits, sizes.bits),
        (&mut preset.format.group, sizes.group),
    ] {
        *size = given.unwrap_or(*size);
    }
    sizes.layers.map_or(Ok(()), |count| preset.set_layers(count))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use clap::Parser;
    use safetensors::SafeTensors;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::logits;

    fn flags(arguments: &str, out: &Path) -> SynthFlags {
        let out = out.to_str().unwrap();
        let command = ["lily", "synth", "--out", out].into_iter().chain(arguments.split_whitespace());
        match Cli::try_parse_from(command).unwrap().command {
            Command::Synth(flags) => flags,
            other => panic!("{other:?}"),
        }
    }

    fn refused(arguments: &str, out: &Path) -> String {
        crate::terminal::causes(&write(&flags(arguments, out), &|| false).unwrap_err())
    }

    /// Small in every size but layers and vocabulary.
    const SMALL: &str = "--hidden 128 --experts 16 --active-experts 4 \
                        --expert-width 64 --shared-width 64 --query-heads 4 --head-dim 32 --rotary-dim 8 --key-heads 2 \
                        --value-heads 4 --key-dim 32 --value-dim 32 --max-context 512 --seed 5";

    /// Logits of every position, a row each.
    fn logits_of(model: &Path, tokens: usize, folder: &Path) -> Vec<Vec<f64>> {
        let (list, out) = (folder.join("tokens.json"), folder.join("logits"));
        let ids: Vec<usize> = (0..tokens).map(|i| i * 2_654_435_761 % (1 << 32) % 1000).collect();
        fs::write(&list, serde_json::to_string(&ids).unwrap()).unwrap();
        let [model, list, out_name] = [model, &list, &out].map(|p| p.to_str().unwrap());
        let command = ["lily", "logits", "--model", model, "--tokens", list, "--out", out_name];
        let Command::Logits(flags) = Cli::try_parse_from(command).unwrap().command else { panic!("logits") };
        logits::run(&flags).unwrap();
        let bytes = fs::read(&out).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values: Vec<f64> = file
            .tensor("logits")
            .unwrap()
            .data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f64::from(f32::from_le_bytes(*b)))
            .collect();
        values.chunks(values.len() / tokens).map(<[f64]>::to_vec).collect()
    }

    fn mean(values: impl Iterator<Item = f64>) -> f64 {
        let (sum, n) = values.fold((0.0, 0.0), |(sum, n), x| (sum + x, n + 1.0));
        sum / n
    }

    #[test]
    fn forty_random_layers_give_logits_of_sane_scale() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("model");
        assert_eq!(
            write(&flags(&format!("--preset qwen3.6-35b-a3b --vocab 1000 {SMALL}"), &out), &|| false)
                .unwrap(),
            Written::All
        );
        let loaded = setup::load(out.to_str()).unwrap();
        assert_eq!(loaded.text.tokenizer().size(), 757);
        assert_eq!(loaded.model.end_tokens, [724, 726]);
        let rows = logits_of(&out, 128, folder.path());
        assert!(rows.iter().flatten().all(|x| x.is_finite()));
        let uniform = (rows[0].len() as f64).ln();
        let entropy = |row: &Vec<f64>| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(|x| -(x.exp() / sum) * (x - sum.ln())).sum::<f64>() / uniform
        };
        for row in &rows {
            let deviation = mean(row.iter().map(|x| x * x)).sqrt();
            assert!((2.0..3.2).contains(&deviation), "{deviation}");
            assert!((0.02..0.9).contains(&entropy(row)), "{}", entropy(row));
        }
        let entropy = mean(rows.iter().map(entropy));
        assert!((0.4..0.7).contains(&entropy), "{entropy} of a uniform choice");
        // Tokens have hardly a direction in common, by which all would go to the same experts: the rows of lm_head are
        // random directions as those of a router are. Of independent rows the share would be one of their number.
        let common = |v: usize| mean(rows.iter().map(|row| row[v])).powi(2);
        let all = mean(rows.iter().flatten().map(|x| x * x));
        let share = mean((0..1000).map(common)) / all;
        assert!(share < 0.01 + 1.0 / 128.0, "{share}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_flag_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("model");
        for (arguments, wanted) in [
            ("--preset layer5", "--preset layer5 is not known; known are qwen3.6-35b-a3b, layer4"),
            ("--preset layer4 --hidden 100", "--hidden is 100; wanted a multiple of the routers' group, 64"),
            ("--preset layer4 --layers 99999999999999", "--layers is 99999999999999; wanted 1 to 1024"),
            ("--preset layer4 --active-experts 300", "--active-experts is 300; wanted 1 to 256"),
            ("--preset layer4 --vocab 0", "--vocab is 0; wanted 1 to 16777216"),
            ("--preset layer4 --bits 7", "--bits is 7; wanted one of 2, 3, 4, 5, 6, 8"),
            (
                "--preset qwen3.6-35b-a3b --experts 4096 --expert-width 1048576",
                "not enough room: the model takes 593.74 TB, and ",
            ),
        ] {
            let error = refused(arguments, &out);
            assert!(error.contains(wanted), "{error}");
            assert!(!out.exists());
        }
    }

    #[test]
    fn every_size_has_its_flag() {
        // An error names the flag by the size's name, and clap would take no other.
        let folder = tempfile::tempdir().unwrap();
        for size in [
            "layers",
            "vocab",
            "hidden",
            "max-context",
            "query-heads",
            "kv-heads",
            "head-dim",
            "rotary-dim",
            "key-heads",
            "value-heads",
            "key-dim",
            "value-dim",
            "conv-taps",
            "experts",
            "active-experts",
            "expert-width",
            "shared-width",
            "bits",
            "group",
        ] {
            let error = refused(&format!("--preset layer4 --{size} 0"), folder.path());
            assert!(error.contains(" is 0; wanted ") || error.contains("; wanted 2 to 0"), "{size}: {error}");
        }
    }

    #[test]
    fn a_folder_that_is_not_empty_needs_force() {
        let folder = tempfile::tempdir().unwrap();
        let tiny = format!("--preset layer4 --layers 1 --vocab 200 {SMALL}");
        fs::write(folder.path().join("model.safetensors.lily-partial"), "left by a run that was killed")
            .unwrap();
        write(&flags(&tiny, folder.path()), &|| false).unwrap();
        // Too few rows for a tokenizer.
        assert!(!folder.path().join("tokenizer.json").exists());
        let error = refused(&tiny, folder.path());
        assert!(error.contains("is not empty, it holds ") && error.contains("--force"), "{error}");
        write(&flags(&format!("{tiny} --force"), folder.path()), &|| false).unwrap();
        let file = folder.path().join("config.json");
        assert!(refused(&tiny, &file).contains("is not a folder"));
        let cancelled = write(&flags(&tiny, &folder.path().join("new")), &|| true).unwrap();
        assert!(cancelled == Written::Cancelled && !folder.path().join("new").exists());
    }

    #[test]
    fn force_leaves_no_tokenizer_of_the_old_model() {
        let folder = tempfile::tempdir().unwrap();
        let tiny = |vocab: usize| format!("--preset layer4 --layers 1 {SMALL} --force --vocab {vocab}");
        write(&flags(&tiny(700), folder.path()), &|| false).unwrap();
        assert!(folder.path().join("tokenizer.json").exists());
        write(&flags(&tiny(200), folder.path()), &|| false).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.json", "generation_config.json", "model.safetensors"]);
    }

    #[test]
    fn a_tokenizer_that_could_not_be_read_is_not_made() {
        let fits = tokenizer_for(248_320, &|| false).unwrap().flatten().unwrap();
        let mut json = Vec::new();
        fits.write_to(&mut json).unwrap();
        assert_eq!(json.len() as u64, fits.bytes());
        assert!(tokenizer_for(8_500_000, &|| false).unwrap().unwrap().is_none());
        // Ctrl-C is heard while it is measured.
        assert!(tokenizer_for(8_500_000, &|| true).unwrap().is_none());
    }

    #[test]
    fn the_folder_is_looked_at_before_the_tokenizer_is_made() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        let asked = std::sync::atomic::AtomicBool::new(false);
        let cancelled = || asked.fetch_or(true, std::sync::atomic::Ordering::Relaxed);
        let large = format!("--preset layer4 --layers 1 --vocab 8500000 {SMALL}");
        let error = write(&flags(&large, folder.path()), &cancelled).unwrap_err().to_string();
        assert!(error.contains("it holds notes.txt") && !asked.into_inner(), "{error}");
    }
}
