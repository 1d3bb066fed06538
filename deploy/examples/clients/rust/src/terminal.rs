use std::io::{self, Write};
use std::process;

/// Return the text without control characters, so that a model's answer cannot steer the terminal.
pub fn printable(text: &str) -> String {
    let is_hidden = |c: char| c.is_control() && c != '\n' && c != '\t';
    text.chars().map(|c| if is_hidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Write a part of the answer. A reader that is gone ends the program, and is no failure.
pub fn write(text: &str) {
    let mut out = io::stdout().lock();
    if out.write_all(printable(text).as_bytes()).and_then(|()| out.flush()).is_err() {
        process::exit(0);
    }
}

/// Tell the user something beside the answer.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
}
