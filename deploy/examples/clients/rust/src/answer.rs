use crate::pagantic::orchestrator::v1::execution_event::Event;
use crate::pagantic::orchestrator::v1::{ExecutionEvent, SystemResponse};
use crate::terminal::write;

/// The text of an answer as it streams, and how much of it stands on the terminal.
#[derive(Default)]
pub struct Answer {
    pub response: Option<SystemResponse>,
    /// Of the last stored event.
    pub sequence: i64,
    text: String,
    shown: String,
    /// Bytes of the text that streamed before the last stored event.
    stored: usize,
}

impl Answer {
    /// Read an event, and show the text that it brings.
    pub fn take(&mut self, event: ExecutionEvent) {
        // Deltas repeat the sequence of the stored event before them.
        if event.sequence > self.sequence {
            self.sequence = event.sequence;
            self.stored = self.text.len();
        }
        match event.event {
            Some(Event::ContentDelta(delta)) => self.text += &delta.text,
            Some(Event::AttemptDiscarded(_)) => {
                self.text.clear();
                self.stored = 0;
            }
            Some(Event::Completed(completed)) => {
                self.response = completed.response;
                self.text = self.response.as_ref().map_or_else(String::new, |response| response.content.clone());
            }
            _ => {}
        }
        self.show();
    }

    /// Forget the text after the last stored event: who follows from that event gets it again.
    pub fn rewind(&mut self) {
        self.text.truncate(self.stored);
    }

    fn show(&mut self) {
        if self.shown.starts_with(&self.text) {
            return;
        }
        match self.text.strip_prefix(&self.shown) {
            Some(rest) => write(rest),
            None => write(&format!("\n{}", self.text)),
        }
        self.shown.clone_from(&self.text);
    }
}
