//! minijinja, set up as transformers sets up jinja2, and bounded: a template comes with a checkpoint and is not trusted.
//!
//! Two operators of minijinja 3.1 work without paying fuel, so a template made for it can still exhaust the memory: `+`
//! of two lists copies them once thirty-two joins are nested, and `~` of a list prints it. Everything else that makes
//! text or walks through a value is charged, here or there.

use std::error::Error as _;
use std::io;
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use regex::Regex;

use super::functions::{self, Raised};
use crate::error::{PromptError, TextError};
use crate::model::token_text;

/// The name under which the template is compiled.
const NAME: &str = "chat_template";
/// Steps that any conversation may take; one step is an instruction or 64 bytes of text made. Together with the share
/// that grows with the conversation this bounds time (about 20 ns a step) and memory (64 bytes a step).
const BASE_FUEL: u64 = 3_000_000;
/// Further steps for each byte of the conversation. A byte is copied a few times by macros, trims and joins.
const FUEL_PER_BYTE: u64 = 1;
/// Further steps for each message.
const FUEL_PER_MESSAGE: u64 = 4_000;
/// Calls within calls. Macros of real templates nest two or three deep.
const RECURSION: usize = 100;
/// Bytes that any conversation may be rendered to.
const BASE_OUTPUT: usize = 8 << 20;
/// Further bytes for each byte of the conversation. JSON may escape a character as six.
const OUTPUT_PER_BYTE: usize = 8;

/// How much work a conversation may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Bytes of text in the conversation.
    pub(super) bytes: usize,
    /// Messages and tools in it.
    pub(super) messages: usize,
}

/// A compiled template.
#[derive(Debug)]
pub(super) struct Engine {
    environment: Environment<'static>,
    source: String,
}

impl Engine {
    pub(super) fn new(source: String, config: &serde_json::Value) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| TextError::Template(e.to_string()))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_recursion_limit(RECURSION);
        functions::install(&mut environment);
        for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
            if let Some(text) = token_text(config.get(name)) {
                environment.add_global(name, Value::from(text));
            }
        }
        environment
            .add_template_owned(NAME, without_generation_tags(&source))
            .map_err(|e| TextError::Template(describe(&e)))?;
        Ok(Engine { environment, source })
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn render(&self, context: Value, allowance: Allowance) -> Result<String, PromptError> {
        let mut environment = self.environment.clone();
        let fuel =
            BASE_FUEL + FUEL_PER_BYTE * allowance.bytes as u64 + FUEL_PER_MESSAGE * allowance.messages as u64;
        environment.set_fuel(Some(fuel));
        let most = BASE_OUTPUT.saturating_add(allowance.bytes.saturating_mul(OUTPUT_PER_BYTE));
        let mut output = Bounded { bytes: Vec::new(), most };
        let template = environment.get_template(NAME).map_err(|e| prompt_error(&e))?;
        template.render_captured_to(context, &mut output).map_err(|e| prompt_error(&e))?;
        String::from_utf8(output.bytes).map_err(|e| PromptError::Failed(e.to_string()))
    }
}

/// Collects output up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::Error::other(format!("more than {} bytes of output", self.most)));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Training templates mark the assistant's own words with `{% generation %}`, a tag of transformers that changes
/// nothing about the text. A condition that always holds has the same effect on blanks around it.
fn without_generation_tags(source: &str) -> String {
    static OPENING: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*generation\s*([-+]?)%\}").ok());
    static CLOSING: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}").ok());
    match (&*OPENING, &*CLOSING) {
        (Some(opening), Some(closing)) => {
            let opened = opening.replace_all(source, "{%$1 if true $2%}");
            closing.replace_all(&opened, "{%$1 endif $2%}").into_owned()
        }
        _ => source.to_owned(),
    }
}

fn prompt_error(error: &Error) -> PromptError {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return PromptError::Refused(message.clone());
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => PromptError::TooMuchWork("it took too many steps".into()),
        ErrorKind::WriteFailure => PromptError::TooMuchWork("it wrote too much text".into()),
        _ => PromptError::Failed(describe(error)),
    }
}

/// The error and its place, without the excerpt of the template that minijinja adds on request.
fn describe(error: &Error) -> String {
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}
