//! A conversation that outlives its context: the oldest exchange goes when the newest message would not fit.

use super::request::{Message, Role};
use crate::error::Result;

/// The messages of a chat, with an optional system message that always stays.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    system: Option<String>,
    messages: Vec<Message>,
}

/// How long a prompt may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Up to here an answer has the room it wants: older messages are forgotten to get there.
    pub comfortable: usize,
    /// A newest message that needs more than that still passes up to here.
    pub most: usize,
}

/// A prompt and what it cost.
#[derive(Debug, PartialEq, Eq)]
pub enum Fitted {
    /// It fits.
    Prompt {
        /// The prompt.
        tokens: Vec<u32>,
        /// How many messages were forgotten for it.
        forgotten: usize,
    },
    /// Even the newest message alone is too long; it was taken out again.
    TooLong {
        /// Tokens of the prompt with that message alone.
        tokens: usize,
    },
}

impl Conversation {
    /// An empty conversation.
    pub fn new(system: Option<String>) -> Self {
        Self {
            system,
            messages: Vec::new(),
        }
    }

    /// Replaces the system message.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// Forgets everything but the system message.
    pub fn clear(&mut self) {
        self.messages.clear();
    }

    /// The messages in order, the system message first.
    pub fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(Message::system);
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Takes the newest message back if it is a user's, to which there is no answer then.
    pub fn pop_unanswered(&mut self) {
        if self
            .messages
            .last()
            .is_some_and(|message| message.role == Role::User)
        {
            self.messages.pop();
        }
    }

    /// The prompt for the conversation as it is: as long as it is too long, the oldest user message and the answers after
    /// it are forgotten. On failure nothing is.
    ///
    /// # Errors
    /// Those of `render`.
    pub fn fit(
        &mut self,
        room: Room,
        render: impl Fn(&[Message]) -> Result<Vec<u32>>,
    ) -> Result<Fitted> {
        let mut skipped = 0;
        loop {
            let system = self.system.iter().map(Message::system);
            let kept: Vec<Message> = system
                .chain(self.messages[skipped..].iter().cloned())
                .collect();
            let tokens = render(&kept)?;
            let next = self.next_user(skipped);
            let limit = if next.is_some() {
                room.comfortable
            } else {
                room.most
            };
            if tokens.len() <= limit {
                self.messages.drain(..skipped);
                return Ok(Fitted::Prompt {
                    tokens,
                    forgotten: skipped,
                });
            }
            match next {
                Some(next) => skipped = next,
                None => {
                    self.messages.pop();
                    return Ok(Fitted::TooLong {
                        tokens: tokens.len(),
                    });
                }
            }
        }
    }

    /// The first user message after index `after`.
    fn next_user(&self, after: usize) -> Option<usize> {
        let later = self.messages.iter().enumerate().skip(after + 1);
        later
            .into_iter()
            .find(|(_, message)| message.role == Role::User)
            .map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One token for each byte of content, and one for each message.
    fn render(messages: &[Message]) -> Result<Vec<u32>> {
        Ok(vec![
            0;
            messages
                .iter()
                .map(|message| message.content.len() + 1)
                .sum()
        ])
    }

    fn chat() -> Conversation {
        let mut chat = Conversation::new(Some("sys".to_owned()));
        chat.push(Message::user("first"));
        chat.push(Message::assistant("answer one"));
        chat.push(Message::user("second"));
        chat.push(Message::assistant("answer two"));
        chat.push(Message::user("third"));
        chat
    }

    fn exactly(limit: usize) -> Room {
        Room {
            comfortable: limit,
            most: limit,
        }
    }

    fn contents(chat: &Conversation) -> Vec<String> {
        chat.messages()
            .into_iter()
            .map(|message| message.content)
            .collect()
    }

    #[test]
    fn nothing_is_forgotten_while_it_fits_exactly() {
        let mut chat = chat();
        let len = render(&chat.messages()).unwrap().len();
        assert_eq!(
            chat.fit(exactly(len), render).unwrap(),
            Fitted::Prompt {
                tokens: vec![0; len],
                forgotten: 0
            }
        );
    }

    #[test]
    fn the_oldest_exchange_goes_first_and_the_system_message_stays() {
        let mut chat = chat();
        let len = render(&chat.messages()).unwrap().len();
        let Fitted::Prompt { forgotten, .. } = chat.fit(exactly(len - 1), render).unwrap() else {
            panic!("fits")
        };
        assert_eq!(forgotten, 2);
        assert_eq!(contents(&chat), ["sys", "second", "answer two", "third"]);
        let Fitted::Prompt { tokens, forgotten } = chat.fit(exactly(10), render).unwrap() else {
            panic!("fits")
        };
        assert_eq!((tokens.len(), forgotten), (10, 2));
        assert_eq!(contents(&chat), ["sys", "third"]);
    }

    #[test]
    fn room_for_the_answer_costs_old_messages_but_never_the_newest() {
        let mut chat = chat();
        let room = Room {
            comfortable: 5,
            most: 10,
        };
        let Fitted::Prompt { tokens, forgotten } = chat.fit(room, render).unwrap() else {
            panic!("fits")
        };
        assert_eq!((tokens.len(), forgotten), (10, 4));
    }

    #[test]
    fn a_message_that_never_fits_is_taken_out_and_the_chat_survives() {
        let mut chat = chat();
        chat.pop_unanswered();
        chat.push(Message::user("x".repeat(100)));
        assert_eq!(
            chat.fit(exactly(60), render).unwrap(),
            Fitted::TooLong { tokens: 105 }
        );
        assert_eq!(
            contents(&chat),
            ["sys", "first", "answer one", "second", "answer two"]
        );
    }
}
