//! Rendering what a template refuses although ordinary clients send it.
//!
//! Official templates of the family raise on a system message that is not the first, on a second one, on the developer
//! role, and on conversations without a user's turn. Agents send all of these. The model itself is not troubled: ChatML
//! has a system turn at any place. So a template that refused is rendered once more with messages that it accepts in
//! place of the ones it does not, and the substitutes are taken out of the text again, turn by turn. Only what the
//! conversation has is substituted, and only after a refusal: a template that can do it by itself is left to do so.
//!
//! - A developer's message is a system message; the leading run of them is one message, joined by an empty line.
//! - A later system message is rendered as a user's turn whose text is a tool's response: the one kind of user's turn
//!   that templates do not take for a question, so that it does not move the point before which reasoning is dropped.
//!   In the text, the turn is then renamed.
//! - A conversation without a question gets one at the front, whose turn is then cut out. All of its assistant's turns
//!   are therefore after the last question, as in the tool loop that such a conversation is the rest of.

use std::borrow::Cow;

use super::protect::Private;
use super::whitespace::strip;
use crate::chat::{Chat, Message, Role};

const RESPONSE_OPEN: &str = "<tool_response>";
const RESPONSE_CLOSE: &str = "</tool_response>";
const TURN_OPEN: &str = "<|im_start|>";
const TURN_CLOSE: &str = "<|im_end|>\n";

/// What is substituted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Developer is system, and the leading run of instructions is one.
    leading: bool,
    /// Later instructions stand in for tool responses.
    in_place: bool,
    /// A question is put in front.
    question: bool,
}

impl Plan {
    /// The plans that make sense for these messages, each doing more than the one before; the first does nothing.
    pub(super) fn all_for(chat: &Chat) -> Vec<Plan> {
        let messages = &chat.messages;
        let leading = messages.iter().take_while(|message| message.role.is_instruction()).count();
        let developer = messages.iter().any(|message| message.role == Role::Developer);
        let later = messages[leading..].iter().any(|message| message.role.is_instruction());
        let mut plans = vec![Plan::default()];
        let mut plan = Plan::default();
        if leading > 1 || developer {
            plan.leading = true;
            plans.push(plan);
        }
        if later {
            plan.in_place = true;
            plans.push(plan);
        }
        if !messages.iter().any(is_question) {
            plan.question = true;
            plans.push(plan);
        }
        plans
    }

    /// The messages to render.
    pub(super) fn messages<'a>(&self, messages: &'a [Message], private: &Private) -> Cow<'a, [Message]> {
        if *self == Plan::default() {
            return Cow::Borrowed(messages);
        }
        let leading = messages.iter().take_while(|message| message.role.is_instruction()).count();
        let mut list = Vec::with_capacity(messages.len() + 1);
        if self.leading && leading > 0 {
            let texts = messages[..leading].iter().map(|message| strip(&message.content));
            let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
            list.push(Message { content: texts.join("\n\n"), ..Message::system("") });
        } else {
            list.extend_from_slice(&messages[..leading]);
        }
        if self.question {
            list.push(Message::user(private.question));
        }
        for message in &messages[leading..] {
            if message.role.is_instruction() && self.in_place {
                list.push(stand_in(message, private));
            } else if message.role == Role::Developer && self.leading {
                list.push(Message { role: Role::System, ..message.clone() });
            } else {
                list.push(message.clone());
            }
        }
        Cow::Owned(list)
    }

    /// Takes the substitutes out of the rendered text. `None` if they cannot be found as expected, which is so for a
    /// template that does not write ChatML.
    pub(super) fn undo(&self, text: String, messages: &[Message], private: &Private) -> Option<String> {
        let mut text = text;
        if self.question {
            text = cut_question(&text, private.question)?;
        }
        if self.in_place {
            let leading = messages.iter().take_while(|message| message.role.is_instruction()).count();
            let wanted = messages[leading..].iter().filter(|message| message.role.is_instruction()).count();
            let open = format!("{TURN_OPEN}user\n{RESPONSE_OPEN}{}", private.open);
            let close = format!("{}{RESPONSE_CLOSE}", private.close);
            if text.matches(&open).count() != wanted || text.matches(&close).count() != wanted {
                return None;
            }
            text = text.replace(&open, &format!("{TURN_OPEN}system\n")).replace(&close, "");
        }
        let left = [private.question, private.open, private.close];
        (!text.contains(left)).then_some(text)
    }
}

/// A user's turn that is not the response of a tool. Templates ask the same way.
fn is_question(message: &Message) -> bool {
    let text = strip(&message.content);
    message.role == Role::User && !(text.starts_with(RESPONSE_OPEN) && text.ends_with(RESPONSE_CLOSE))
}

fn stand_in(message: &Message, private: &Private) -> Message {
    let (open, close, text) = (private.open, private.close, strip(&message.content));
    Message::user(format!("{RESPONSE_OPEN}{open}{text}{close}{RESPONSE_CLOSE}"))
}

fn cut_question(text: &str, question: char) -> Option<String> {
    let (before, after) = text.split_once(question)?;
    let before = before.strip_suffix("user\n")?.strip_suffix(TURN_OPEN)?;
    Some(format!("{before}{}", after.strip_prefix(TURN_CLOSE)?))
}
