//! Splitting what the model says into reasoning and content at `<think>` and `</think>`.
//!
//! The markers are looked for in the text, which finds them both as tokens and spelled out in ordinary ones. A template
//! writes `<think>\n…\n</think>\n\n…`, so the blanks inside the markers and the line breaks after them belong to the
//! markers and not to the text.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A piece of text and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Reasoning(String),
    Content(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but blanks yet: `<think>` here opens the reasoning, everything else is content.
    Start,
    /// Inside the reasoning, nothing but blanks yet. A repeated `<think>` is dropped.
    ReasoningStart,
    /// Inside the reasoning.
    Reasoning,
    /// After `</think>`, nothing but blanks yet.
    ContentStart,
    /// In the content, where markers are text.
    Content,
}

/// The state machine. Its output does not depend on how its input was cut.
#[derive(Clone, Debug)]
pub(crate) struct ReasoningSplitter {
    state: State,
    /// Undecided: blanks that may belong to a marker, and the start of what may become one.
    held: String,
}

impl ReasoningSplitter {
    pub(crate) fn new(starts_in_reasoning: bool) -> Self {
        let state = if starts_in_reasoning { State::ReasoningStart } else { State::Start };
        ReasoningSplitter { state, held: String::new() }
    }

    /// For text in which markers are text.
    pub(crate) fn raw() -> Self {
        ReasoningSplitter { state: State::Content, held: String::new() }
    }

    /// True inside an open think block.
    pub(crate) fn in_reasoning(&self) -> bool {
        matches!(self.state, State::ReasoningStart | State::Reasoning)
    }

    /// True while blanks are swallowed: right after a marker.
    pub(crate) fn swallows_blanks(&self) -> bool {
        matches!(self.state, State::ReasoningStart | State::ContentStart)
    }

    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// The end of the text: nothing undecided will become a marker.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let rest = std::mem::take(&mut self.held);
        let rest = match self.state {
            State::ReasoningStart => rest.trim_start(),
            State::ContentStart => after_line_break(&rest),
            State::Start | State::Reasoning | State::Content => &rest,
        };
        let mut pieces = Vec::new();
        emit(&mut pieces, self.in_reasoning(), rest);
        pieces
    }

    /// Decides what can be decided; true if the state changed and the rest has to be looked at again.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Start => self.at_start(pieces),
            State::ReasoningStart => self.at_reasoning_start(),
            State::Reasoning => self.in_reasoning_text(pieces),
            State::ContentStart => self.at_content_start(),
            State::Content => {
                emit(pieces, false, &std::mem::take(&mut self.held));
                false
            }
        }
    }

    fn at_start(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(OPEN) {
            self.held = rest.to_owned();
            self.state = State::ReasoningStart;
            return true;
        }
        if OPEN.starts_with(text) {
            return false;
        }
        emit(pieces, false, &std::mem::take(&mut self.held));
        self.state = State::Content;
        false
    }

    fn at_reasoning_start(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(OPEN) {
            self.held = rest.to_owned();
            return true;
        }
        if OPEN.starts_with(text) {
            self.held = text.to_owned();
            return false;
        }
        self.held = text.to_owned();
        self.state = State::Reasoning;
        true
    }

    fn in_reasoning_text(&mut self, pieces: &mut Vec<Piece>) -> bool {
        if let Some(at) = self.held.find(CLOSE) {
            emit(pieces, true, self.held[..at].trim_end());
            self.held.drain(..at + CLOSE.len());
            self.state = State::ContentStart;
            return true;
        }
        let decided = self.held[..partial_marker(&self.held, CLOSE)].trim_end().len();
        let rest = self.held.split_off(decided);
        emit(pieces, true, &std::mem::replace(&mut self.held, rest));
        false
    }

    fn at_content_start(&mut self) -> bool {
        if self.held.trim_start().is_empty() {
            return false;
        }
        self.held = after_line_break(&self.held).to_owned();
        self.state = State::Content;
        true
    }
}

/// Without leading blanks, but with the indentation of the first line that has text; blanks alone vanish.
fn after_line_break(text: &str) -> &str {
    let visible = text.trim_start();
    if visible.is_empty() {
        return visible;
    }
    let blanks = text.len() - visible.len();
    match text[..blanks].rfind('\n') {
        Some(at) => &text[at + 1..],
        None => visible,
    }
}

/// Where an end of `text` begins that `marker` starts with; `text.len()` if there is none.
fn partial_marker(text: &str, marker: &str) -> usize {
    let longest = (marker.len() - 1).min(text.len());
    (text.len() - longest..text.len())
        .find(|&at| text.is_char_boundary(at) && marker.starts_with(&text[at..]))
        .unwrap_or(text.len())
}

fn emit(pieces: &mut Vec<Piece>, reasoning: bool, text: &str) {
    if !text.is_empty() {
        pieces.push(if reasoning {
            Piece::Reasoning(text.to_owned())
        } else {
            Piece::Content(text.to_owned())
        });
    }
}
