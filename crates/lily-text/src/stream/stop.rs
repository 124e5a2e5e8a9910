//! Stop strings, matched on text and so over the borders of tokens.

/// Finds the first stop string in a text that arrives in parts.
///
/// The match that *ends* first wins, as it would if the text arrived character by character; of several that end
/// together the longest. What could still become a stop string is held back, so nothing is emitted that a later part
/// would make part of a match.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Emitted by nobody yet: the longest end of the text so far that is the start of a stop string.
    held: String,
    stopped: bool,
}

/// What one part of the text brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// Text that may be shown.
    pub(crate) text: String,
    /// The stop string that matched.
    pub(crate) matched: Option<String>,
}

impl StopMatcher {
    /// Empty strings among `stops` are ignored: they would match everywhere.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        StopMatcher {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            held: String::new(),
            stopped: false,
        }
    }

    /// The text that may be shown after one more part, and the stop string that it completed, if any. After a match
    /// nothing more is shown.
    pub fn push(&mut self, part: &str) -> (String, Option<String>) {
        let Stopped { text, matched } = self.step(part);
        (text, matched)
    }

    /// The end: what was held back was no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    pub(crate) fn step(&mut self, part: &str) -> Stopped {
        if self.stopped || part.is_empty() {
            return Stopped::default();
        }
        if self.stops.is_empty() {
            return Stopped { text: part.to_owned(), matched: None };
        }
        let mut text = std::mem::take(&mut self.held);
        text.push_str(part);
        if let Some((start, stop)) = self.first_match(&text) {
            let matched = Some(stop.to_owned());
            text.truncate(start);
            self.stopped = true;
            return Stopped { text, matched };
        }
        let keep = self.undecided(&text);
        self.held = text.split_off(keep);
        Stopped { text, matched: None }
    }

    /// Start of the match that ends first, and its string.
    fn first_match(&self, text: &str) -> Option<(usize, &str)> {
        self.stops
            .iter()
            .filter_map(|stop| {
                text.find(stop.as_str()).map(|start| (start + stop.len(), start, stop.as_str()))
            })
            .min_by_key(|&(end, start, _)| (end, start))
            .map(|(_, start, stop)| (start, stop))
    }

    /// Where the longest end of `text` begins that a stop string starts with; `text.len()` if there is none.
    fn undecided(&self, text: &str) -> usize {
        let longest = self.stops.iter().map(|stop| stop.len() - 1).max().unwrap_or(0).min(text.len());
        (text.len() - longest..text.len())
            .filter(|&at| text.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&text[at..])))
            .unwrap_or(text.len())
    }
}
