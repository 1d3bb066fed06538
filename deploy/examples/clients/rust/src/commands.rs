use serde_json::{Value, json};
use tonic::Status;
use uuid::Uuid;

use crate::answer::Answer;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::pagantic::common::v1::{Message, Role, ToolChoice, ToolChoiceMode, tool_choice::Choice};
use crate::pagantic::constraint::v1::{Guarantee, OutputContract};
use crate::pagantic::orchestrator::v1::execution_event::Event;
use crate::pagantic::orchestrator::v1::{
    CancelExecutionRequest, ExecutionHints, GetExecutionRequest, LifecycleState, Mode, SystemRequest, SystemResponse,
    Voting,
};
use crate::terminal::{note, write};

pub const ANSWER_TOKENS: i32 = 80;
const LONG_ANSWER_TOKENS: i32 = 1000;
/// Pieces of text before a connection is dropped, or an execution cancelled.
pub const ENOUGH_PIECES: usize = 5;

/// Return a request with an id of its own, by which it can be cancelled, followed and sent again.
fn make_request(mode: Mode, text: &str, max_tokens: i32) -> SystemRequest {
    let request_id = Uuid::new_v4().to_string();
    note(&format!("request: {request_id}"));
    SystemRequest {
        request_id,
        mode: mode.into(),
        messages: vec![Message { role: Role::User.into(), content: text.into(), ..Default::default() }],
        hints: Some(ExecutionHints { max_tokens, ..Default::default() }),
        ..Default::default()
    }
}

/// Return a chat without tools: its answer is one text.
pub fn make_chat(text: &str, max_tokens: i32) -> SystemRequest {
    let mut request = make_request(Mode::Chat, text, max_tokens);
    let none = Choice::Mode(ToolChoiceMode::None.into());
    request.hints.get_or_insert_default().tool_choice = Some(ToolChoice { choice: Some(none) });
    request
}

/// Return a response that succeeded.
pub fn checked(response: Option<SystemResponse>) -> Result<SystemResponse, Failure> {
    let mut response = response.ok_or_else(|| Status::unavailable("the stream ended before its execution"))?;
    match response.error.take() {
        Some(error) => Err(error.into()),
        None => Ok(response),
    }
}

async fn execute(connection: &mut Connection, request: SystemRequest) -> Result<SystemResponse, Failure> {
    let call = connection.call(request);
    checked(Some(connection.stub.execute(call).await?.into_inner()))
}

pub async fn chat(connection: &mut Connection, text: &str) -> Result<(), Failure> {
    let call = connection.call(make_chat(text, ANSWER_TOKENS));
    let mut events = connection.stub.execute_stream(call).await?.into_inner();
    let mut answer = Answer::default();
    while let Some(event) = events.message().await? {
        answer.take(event);
    }
    write("\n");
    let response = checked(answer.response)?;
    let reason = response.finish_reason().as_str_name().trim_start_matches("FINISH_REASON_");
    note(&format!("finished: {reason}, {} tokens", response.token_usage.unwrap_or_default().output_tokens));
    Ok(())
}

pub async fn extract(connection: &mut Connection, text: &str) -> Result<(), Failure> {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let mut request = make_request(Mode::Structured, text, 100);
    request.output = Some(OutputContract { schema_json: schema.to_string(), ..Default::default() });
    let response = execute(connection, request).await?;
    write(&format!("{}\n", response.structured_output_json));
    let guarantee = response.validation.map_or(Guarantee::Unspecified, |validation| validation.guarantee());
    note(&format!("guarantee: {}", guarantee.as_str_name().trim_start_matches("GUARANTEE_")));
    Ok(())
}

pub async fn vote(connection: &mut Connection, text: &str) -> Result<(), Failure> {
    let schema = json!({
        "type": "object",
        "properties": {"severity": {"enum": ["low", "medium", "high"]}},
        "required": ["severity"],
        "additionalProperties": false,
    });
    let mut request = make_request(Mode::Redundant, text, 40);
    request.output = Some(OutputContract { schema_json: schema.to_string(), ..Default::default() });
    request.voting = Some(Voting { n: 5, ..Default::default() });
    let response = execute(connection, request).await?;
    let label: Value = serde_json::from_str(&response.structured_output_json).unwrap_or_default();
    let severity = label["severity"].as_str().unwrap_or_default();
    write(&format!("label: {severity}\nconfidence: {:.2}\n", response.confidence()));
    Ok(())
}

/// Begin a long answer and cancel it; leaving the stream would do it as well.
pub async fn cancel(connection: &mut Connection, text: &str) -> Result<(), Failure> {
    let request = make_chat(text, LONG_ANSWER_TOKENS);
    let request_id = request.request_id.clone();
    let call = connection.call(request);
    let mut events = connection.stub.execute_stream(call).await?.into_inner();
    let (mut pieces, mut response) = (0, SystemResponse::default());
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::ContentDelta(_)) => pieces += 1,
            Some(Event::Completed(completed)) => response = completed.response.unwrap_or_default(),
            _ => continue,
        }
        if pieces == ENOUGH_PIECES {
            pieces += 1;
            let call = connection.call(CancelExecutionRequest { request_id: request_id.clone() });
            connection.stub.cancel_execution(call).await?;
        }
    }
    let call = connection.call(GetExecutionRequest { request_id });
    let found = connection.stub.get_execution(call).await?.into_inner().execution.unwrap_or_default();
    let state = found.state.map_or(LifecycleState::Unspecified, |state| state.current());
    let code = response.error.clone().unwrap_or_default().code();
    write(&format!("state: {}\n", state.as_str_name().trim_start_matches("LIFECYCLE_STATE_")));
    write(&format!("error: {}\n", code.as_str_name().trim_start_matches("ERROR_CODE_")));
    let tokens = response.token_usage.unwrap_or_default().output_tokens;
    write(&format!("output tokens: {tokens} of {LONG_ANSWER_TOKENS}\n"));
    Ok(())
}

/// Make two requests that fail: one that is refused by a status, and one whose response has an error.
pub async fn error(connection: &mut Connection) -> Result<(), Failure> {
    let mut refused = make_chat("Hello", 8);
    refused.hints.get_or_insert_default().temperature = Some(9.0);
    if let Err(failure) = execute(connection, refused).await {
        failure.show();
    }
    execute(connection, make_request(Mode::Structured, "Hello", 8)).await?;
    Ok(())
}
