//! What can go wrong on the text side. Every message names what was found and what was wanted.

use std::path::PathBuf;

/// A tokenizer or template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file is missing or unreadable.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder, pipe or device in place of a file.
    #[error("{path} is not a regular file; wanted one, or a link to one")]
    NotAFile {
        /// What is there.
        path: PathBuf,
    },
    /// A file that is longer than any of its kind.
    #[error("{path} has {found} bytes; at most {limit} are read: this is not the file it should be")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// The most that are read.
        limit: u64,
    },
    /// tokenizer.json is not JSON of the expected form.
    #[error("tokenizer.json: {0}")]
    Json(String),
    /// tokenizer.json asks for something this engine does not do.
    #[error("tokenizer.json: {field} is {found}; wanted {wanted}")]
    Unsupported {
        /// The field, as a path.
        field: String,
        /// Its value.
        found: String,
        /// What would be accepted.
        wanted: String,
    },
    /// tokenizer_config.json is not JSON of the expected form.
    #[error("tokenizer_config.json: {0}")]
    Config(String),
    /// The chat template does not parse.
    #[error("chat template: {0}")]
    Template(String),
}

/// A message list that cannot be understood: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct MessageError {
    /// The place in the request, for example `messages[2].content[1]`.
    pub path: String,
    /// A sentence without the path.
    pub reason: String,
}

impl MessageError {
    pub(crate) fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        MessageError { path: path.into(), reason: reason.into() }
    }
}

/// A conversation that cannot be made into a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The checkpoint brings no chat template.
    #[error(
        "this model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): \
         it continues plain text only"
    )]
    NoTemplate,
    /// An empty conversation.
    #[error("messages is empty: at least one message is needed")]
    NoMessages,
    /// An option that templates are not given.
    #[error("template option {name:?} is not supported; supported: {supported}")]
    UnknownOption {
        /// Its name.
        name: String,
        /// What could be given, separated by commas.
        supported: String,
    },
    /// The template refused the conversation by `raise_exception`.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The template took more steps, or wrote more text, than any conversation needs.
    #[error("rendering the chat template was stopped: {0}")]
    TooMuchWork(String),
    /// The template failed in any other way.
    #[error("the chat template failed: {0}")]
    Failed(String),
}

impl PromptError {
    /// True if another request could succeed where this one failed; false if no request can (the checkpoint's fault).
    pub fn is_request_fault(&self) -> bool {
        matches!(
            self,
            PromptError::NoMessages
                | PromptError::UnknownOption { .. }
                | PromptError::Refused(_)
                | PromptError::TooMuchWork(_)
                | PromptError::NoTemplate
        )
    }
}
