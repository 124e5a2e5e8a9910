//! What is said beside the answer: on standard error, dim where that is a terminal.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::LazyLock;

/// Whether escape sequences may go to standard error: it is a terminal that knows them, and nobody asked for plain text
/// (`NO_COLOR` with any value but the empty one, as no-color.org has it).
pub(crate) static STYLED: LazyLock<bool> = LazyLock::new(|| {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    std::io::stderr().is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_none_or(|t| t != "dumb")
});

/// The text, dim if standard error shows styles. The style never outlives the text, so that a program that is ended in
/// the middle of an answer leaves the terminal as it was.
pub(crate) fn dim(text: impl Display) -> String {
    if *STYLED { format!("\x1b[2m{text}\x1b[0m") } else { text.to_string() }
}

/// What a model says, safe to show: a terminal obeys control characters, and an answer must not move its cursor, rename
/// its window or type into it. They are shown as U+FFFD; line breaks and tabs stay. Pipes and files get the text as it is.
pub(crate) fn shown(text: &str, on_terminal: bool) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if on_terminal && text.contains(obeyed) {
        Cow::Owned(text.replace(obeyed, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// A remark on a line of its own. A standard error that takes nothing (a full disk, a reader that has gone) must not
/// end an answer, so its failures are nobody's.
pub(crate) fn remark(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", dim(text));
}

/// A failure, on a line of its own.
pub(crate) fn failure(error: &anyhow::Error) {
    let _ = writeln!(std::io::stderr(), "lily: {}", causes(error));
}

/// The error and its causes, from the outermost in. Some libraries put the cause into their own message as well: it is
/// said once.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said {
        said if said.is_empty() => cause,
        said if said.contains(&cause) => said,
        said => format!("{said}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::{causes, shown};

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        let text = "a\x1b]0;title\x07b\u{9b}31m\r\n\tc é";
        assert_eq!(shown(text, true), "a\u{fffd}]0;title\u{fffd}b\u{fffd}31m\u{fffd}\n\tc é");
        assert_eq!(shown(text, false), text);
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow!("no such file").context("the folder x: no such file").context("--out x");
        assert_eq!(causes(&error), "--out x: the folder x: no such file");
        assert_eq!(causes(&anyhow!("inner").context("outer")), "outer: inner");
    }
}
