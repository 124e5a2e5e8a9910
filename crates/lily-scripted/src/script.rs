//! What the scripted engine says, and to whom.

use serde::Deserialize;

/// The lines of a script: one JSON object a line, empty lines ignored.
///
/// ```json
/// {"match": "weather", "thinking": true, "pieces": ["Hm.", "</think>", "Rain.", {"sleep_ms": 50}], "finish": "stop"}
/// ```
///
/// Which line answers a request:
/// 1. the first line with a `match` that is part of the rendered prompt; such a line answers any number of requests;
/// 2. else the next of the lines without `match`, in order, so that in a script without `match` line i answers the i-th
///    request; after the last of them, the last again;
/// 3. else, in a script where every line has a `match`, none: the request fails with a message that says so.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    lines: Vec<Line>,
    /// Places in `lines` of the lines without `match`.
    plain: Vec<usize>,
}

/// One answer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Answers requests whose rendered prompt holds this text.
    #[serde(rename = "match")]
    pub wanted: Option<String>,
    /// Whether the pieces begin inside the reasoning. Where the prompt's own state differs, the engine says the marker
    /// first, as a model would: `</think>` before content, `<think>` before reasoning; that token is not counted.
    /// Absent: as the prompt has it if a piece closes the reasoning, else false.
    pub thinking: Option<bool>,
    /// What is said, in order; each piece is one step of the engine.
    pub pieces: Vec<Piece>,
    /// How it ends.
    #[serde(default)]
    pub finish: Finish,
    /// Tokens of the prompt to report as reused.
    #[serde(default)]
    pub cached: usize,
}

/// One step.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub enum Piece {
    /// The tokens of this text; markers in it are marker tokens, and an end token ends the answer.
    Text(String),
    /// Something else than text.
    Other(Step),
}

/// A step that is not text.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// This token, known to the tokenizer or not.
    Id(u32),
    /// One token for each of these bytes, in hexadecimal.
    Bytes(String),
    /// Silence.
    SleepMs(u64),
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// With an end token.
    #[default]
    Stop,
    /// As if the token limit had been reached.
    Length,
    /// With a failure of the engine.
    Error,
}

/// A script that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// A line is not of the form above.
    #[error("script line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Nothing to say.
    #[error("the script has no lines; each should be like {{\"pieces\": [\"Hello\"], \"finish\": \"stop\"}}")]
    Empty,
}

impl Script {
    /// Reads the text of a script.
    pub fn parse(text: &str) -> Result<Script, ScriptError> {
        let mut lines = Vec::new();
        for (at, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let fault = |problem: String| ScriptError::Line { line: at + 1, problem };
            let line: Line = serde_json::from_str(text).map_err(|error| fault(error.to_string()))?;
            for piece in &line.pieces {
                if let Piece::Other(Step::Bytes(hex)) = piece {
                    bytes_of(hex).map_err(fault)?;
                }
            }
            lines.push(line);
        }
        if lines.is_empty() {
            return Err(ScriptError::Empty);
        }
        let plain = (0..lines.len()).filter(|&at| lines[at].wanted.is_none()).collect();
        Ok(Script { lines, plain })
    }

    /// The line for a prompt, with its place in the script. `turn` counts the requests that took a line without `match`.
    pub fn line(&self, prompt: &str, turn: &mut usize) -> Option<(usize, &Line)> {
        let fits = |line: &Line| line.wanted.as_deref().is_some_and(|wanted| prompt.contains(wanted));
        let at = match self.lines.iter().position(fits) {
            Some(at) => at,
            None => {
                let at = *self.plain.get(*turn).or(self.plain.last())?;
                *turn += 1;
                at
            }
        };
        Some((at, &self.lines[at]))
    }
}

/// The bytes of a hexadecimal text.
pub(crate) fn bytes_of(hex: &str) -> Result<Vec<u8>, String> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let digits: Option<Vec<u32>> = hex.as_bytes().iter().map(digit).collect();
    match digits {
        Some(digits) if digits.len() % 2 == 0 => {
            Ok(digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
        }
        _ => Err(format!("bytes {hex:?} should be pairs of hexadecimal digits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_read() {
        let text = r#"{"pieces": ["a", {"id": 7}, {"bytes": "F09f"}, {"sleep_ms": 5}], "finish": "length", "thinking": true}"#;
        let script = Script::parse(text).expect("a script");
        let (at, line) = script.line("any prompt", &mut 0).expect("a line");
        assert_eq!((at, line.thinking, line.finish), (0, Some(true), Finish::Length));
        let wanted = [
            Piece::Text("a".into()),
            Piece::Other(Step::Id(7)),
            Piece::Other(Step::Bytes("F09f".into())),
            Piece::Other(Step::SleepMs(5)),
        ];
        assert_eq!(line.pieces, wanted);
        assert_eq!(bytes_of("F09f"), Ok(vec![0xf0, 0x9f]));
    }

    #[test]
    fn lines_with_match_go_first_and_others_in_order() {
        let script = Script::parse(
            "{\"pieces\": [\"one\"]}\n\n{\"match\": \"rain\", \"pieces\": [\"wet\"]}\n{\"pieces\": [\"two\"]}\n",
        )
        .expect("a script");
        let mut turn = 0;
        let mut ask = |prompt| script.line(prompt, &mut turn).map(|(at, _)| at);
        assert_eq!(ask("sun"), Some(0));
        assert_eq!(ask("rain"), Some(1));
        assert_eq!(ask("sun"), Some(2));
        assert_eq!(ask("rainbow"), Some(1));
        assert_eq!(ask("sun"), Some(2), "the last line again");
        let only_match = Script::parse(r#"{"match": "x", "pieces": []}"#).expect("a script");
        assert_eq!(only_match.line("y", &mut 0), None);
    }

    #[test]
    fn a_bad_line_is_named() {
        for bad in [
            "nonsense",
            "{}",
            r#"{"pieces": [1]}"#,
            r#"{"pieces": [{"bytes": "f"}]}"#,
            r#"{"pieces": [{"bytes": "zz"}]}"#,
            r#"{"pieces": [{"id": -1}]}"#,
            r#"{"pieces": [{"sleep": 1}]}"#,
            r#"{"pieces": [], "finish": "never"}"#,
            r#"{"pieces": [], "peices": []}"#,
        ] {
            let error = Script::parse(&format!("{{\"pieces\": []}}\n{bad}")).expect_err(bad);
            assert!(error.to_string().starts_with("script line 2: "), "{bad}: {error}");
        }
        assert!(matches!(Script::parse("\n \n"), Err(ScriptError::Empty)));
    }
}
