//! A program that uses pagantic by gRPC: `client COMMAND [TEXT]`. Without arguments it lists the commands.

mod answer;
mod commands;
mod connection;
mod failure;
mod resume;
mod terminal;

// The stubs, which build.rs makes: `pagantic::common::v1` and so on.
include!(concat!(env!("OUT_DIR"), "/contract.rs"));

use std::{env, process::ExitCode, time::Duration};

use connection::Connection;
use failure::{EXIT_USAGE, Failure};
use terminal::note;

const USAGE: &str = "usage: client COMMAND [TEXT]
  chat TEXT     stream the answer to a text
  extract TEXT  get a person's name and age out of a text, as JSON that satisfies a schema
  vote TEXT     have five samples vote how severe an incident is
  resume TEXT   drop the connection in the middle of an answer, and go on where it broke off
  cancel TEXT   begin a long answer, cancel it, and see that it has stopped
  error         make two requests that fail, and say how
environment: PAGANTIC_ADDRESS (localhost:50051, or https://host:port), PAGANTIC_API_KEY, PAGANTIC_TLS_CA_FILE,
  PAGANTIC_TIMEOUT_S (120)";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_known = match arguments[..] {
        ["error"] => true,
        [name, _] => ["chat", "extract", "vote", "resume", "cancel"].contains(&name),
        _ => false,
    };
    if !is_known {
        note(USAGE);
        return EXIT_USAGE.into();
    }
    let mut connection = match Connection::new() {
        Ok(connection) => connection,
        Err(wrong) => {
            note(&format!("client: {wrong}"));
            return EXIT_USAGE.into();
        }
    };
    match run(&mut connection, &arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.show();
            failure.exit_code().into()
        }
    }
}

/// Run a command. The service ends a call at its deadline; where nothing comes back, the program ends soon after.
async fn run(connection: &mut Connection, arguments: &[&str]) -> Result<(), Failure> {
    let limit = connection.timeout + Duration::from_secs(1);
    let text = arguments.get(1).copied().unwrap_or_default();
    let command = async {
        match arguments[0] {
            "chat" => commands::chat(connection, text).await,
            "extract" => commands::extract(connection, text).await,
            "vote" => commands::vote(connection, text).await,
            "resume" => resume::resume(connection, text).await,
            "cancel" => commands::cancel(connection, text).await,
            _ => commands::error(connection).await,
        }
    };
    tokio::time::timeout(limit, command)
        .await
        .unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("nothing came back in time").into()))
}
