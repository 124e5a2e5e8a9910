//! Encoding speed of a tokenizer on one core, by kind of text and by length, to see that it is linear.
//!
//!     cargo run --release -p lily-text --example encode_speed -- FOLDER [--at-least MB/S] [FILE...]
//!
//! FOLDER holds a tokenizer.json. Files are measured besides the built-in texts. With --at-least the exit status tells
//! whether every text was encoded at that speed.

use std::time::Instant;

use lily_text::TextModel;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().ok_or("usage: encode_speed FOLDER [--at-least MB/S] [FILE...]")?;
    let mut arguments = arguments.peekable();
    let mut least = 0.0;
    if arguments.next_if(|argument| argument == "--at-least").is_some() {
        let number = arguments.next().ok_or("--at-least wants a number of MB/s")?;
        least = number.to_string_lossy().parse()?;
    }
    let started = cpu_seconds();
    let model = TextModel::from_dir(folder.as_ref())?;
    println!("loaded in {:.2} s", cpu_seconds() - started);
    let mut texts: Vec<(String, String)> =
        KINDS.iter().map(|(name, make)| ((*name).into(), make(1 << 20))).collect();
    for path in arguments {
        texts.push((path.to_string_lossy().into_owned(), std::fs::read_to_string(&path)?));
    }
    println!("{:<24} {:>10} {:>10} {:>10}", "MB/s of", "1/16", "1/4", "whole");
    let mut slowest = f64::INFINITY;
    for (name, text) in &texts {
        let speeds = [16, 4, 1].map(|part| speed(&model, cut(text, text.len() / part)));
        println!("{name:<24} {}", speeds.map(|speed| format!("{speed:>10.2}")).join(" "));
        slowest = speeds.into_iter().fold(slowest, f64::min);
    }
    if slowest < least {
        return Err(format!("the slowest is {slowest:.2} MB/s, wanted {least} MB/s").into());
    }
    Ok(())
}

/// Megabytes a second, the best of three.
fn speed(model: &TextModel, text: &str) -> f64 {
    let seconds = (0..3).map(|_| {
        let started = cpu_seconds();
        std::hint::black_box(model.tokenizer().encode_text(std::hint::black_box(text)));
        cpu_seconds() - started
    });
    text.len() as f64 / 1e6 / seconds.fold(f64::INFINITY, f64::min)
}

/// Time that this thread has run, so that others on the machine do not count; where the system does not tell, the time.
fn cpu_seconds() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    match nanoseconds {
        Some(nanoseconds) => nanoseconds as f64 / 1e9,
        None => START.elapsed().as_secs_f64(),
    }
}

static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[..end]
}

type Maker = fn(usize) -> String;

const KINDS: [(&str, Maker); 12] = [
    ("words", |bytes| words(bytes, 4000)),
    ("words, all different", |bytes| words(bytes, usize::MAX)),
    ("code", |bytes| {
        repeat("    let total: usize = rows.iter().map(|row| row.len()).sum(); // in bytes\n", bytes)
    }),
    ("one letter", |bytes| "a".repeat(bytes)),
    ("letters at random", |bytes| pick(bytes, &('a'..='z').collect::<Vec<_>>())),
    ("blanks", |bytes| " ".repeat(bytes)),
    ("line breaks", |bytes| "\n".repeat(bytes)),
    ("digits", |bytes| pick(bytes, &('0'..='9').collect::<Vec<_>>())),
    ("punctuation", |bytes| pick(bytes, &"!\"#$%&()*+,-./:;=?@[]^_{|}~".chars().collect::<Vec<_>>())),
    ("emoji", |bytes| pick(bytes, &('\u{1F600}'..='\u{1F64F}').collect::<Vec<_>>())),
    ("Chinese, no blanks", |bytes| pick(bytes, &('\u{4E00}'..='\u{9FA5}').collect::<Vec<_>>())),
    ("decomposed marks", |bytes| repeat("e\u{323}\u{302}", bytes)),
];

/// Enough of a generator for texts: Steele et al. 2014, SplitMix64.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) as usize
}

fn repeat(part: &str, bytes: usize) -> String {
    part.repeat(bytes / part.len() + 1)
}

fn pick(bytes: usize, characters: &[char]) -> String {
    let mut state = 1;
    let mut text = String::new();
    while text.len() < bytes {
        text.push(characters[random(&mut state) % characters.len()]);
    }
    text
}

fn words(bytes: usize, vocabulary: usize) -> String {
    let mut state = 2;
    let mut text = String::new();
    while text.len() < bytes {
        let mut word = (random(&mut state) % vocabulary) as u64;
        let length = 2 + random(&mut word) % 9;
        text.extend((0..length).map(|_| char::from(b'a' + (random(&mut word) % 26) as u8)));
        text.push(' ');
    }
    text
}
