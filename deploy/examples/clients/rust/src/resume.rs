use std::time::{Duration, Instant};

use tonic::{Status, Streaming};

use crate::answer::Answer;
use crate::commands::{ANSWER_TOKENS, ENOUGH_PIECES, checked, make_chat};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::pagantic::orchestrator::v1::execution_event::Event;
use crate::pagantic::orchestrator::v1::{ExecutionEvent, FollowExecutionRequest, SystemRequest};
use crate::terminal::{note, write};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Stream an answer over a connection that breaks. A request in the background goes on when its caller is gone; who
/// comes back follows it from the last event.
pub async fn resume(connection: &mut Connection, text: &str) -> Result<(), Failure> {
    let mut request = make_chat(text, ANSWER_TOKENS);
    request.background = true;
    let hints = request.hints.get_or_insert_default();
    hints.timeout = prost_types::Duration::try_from(connection.timeout).ok(); // No deadline of a call binds it.
    let ends_at = Instant::now() + connection.timeout;
    let mut answer = Answer::default();
    let (mut pieces, mut wait) = (0, FIRST_WAIT);
    while answer.response.is_none() {
        let begun = answer.sequence;
        match read_until_lost(connection, &request, &mut answer, &mut pieces, ends_at).await {
            Ok(()) => {}
            Err(status) => {
                let failure = Failure::from(status);
                if answer.sequence > begun {
                    wait = FIRST_WAIT;
                }
                if !failure.is_lost() || Instant::now() + wait > ends_at {
                    return Err(failure);
                }
                note(&format!("\nlost: after event {}", answer.sequence));
                tokio::time::sleep(wait).await;
                wait = LONGEST_WAIT.min(2 * wait);
            }
        }
        answer.rewind();
    }
    write("\n");
    checked(answer.response)?;
    Ok(())
}

/// Read events until the stream ends; after some pieces of text the connection is dropped, once.
async fn read_until_lost(
    connection: &mut Connection,
    request: &SystemRequest,
    answer: &mut Answer,
    pieces: &mut usize,
    ends_at: Instant,
) -> Result<(), Status> {
    let mut events = begin_or_follow(connection, request, answer.sequence, ends_at).await?;
    while let Some(event) = events.message().await? {
        *pieces += usize::from(matches!(event.event, Some(Event::ContentDelta(_))));
        answer.take(event);
        if *pieces == ENOUGH_PIECES {
            *pieces += 1;
            note(&format!("\ndropped: after event {}", answer.sequence));
            connection.drop_it();
            return Ok(());
        }
    }
    if answer.response.is_none() {
        // A stream that ends without a status counts as a lost connection.
        return Err(Status::unavailable("the stream ended before its execution"));
    }
    Ok(())
}

/// Return the stream of a request, which is begun where no event of it has arrived; the same id begins it once.
async fn begin_or_follow(
    connection: &mut Connection,
    request: &SystemRequest,
    sequence: i64,
    ends_at: Instant,
) -> Result<Streaming<ExecutionEvent>, Status> {
    let timeout = ends_at.saturating_duration_since(Instant::now());
    if sequence == 0 {
        let call = connection.call_within(request.clone(), timeout);
        return Ok(connection.stub.execute_stream(call).await?.into_inner());
    }
    note(&format!("follows: event {sequence}"));
    let following = FollowExecutionRequest { request_id: request.request_id.clone(), after_sequence: sequence };
    let call = connection.call_within(following, timeout);
    Ok(connection.stub.follow_execution(call).await?.into_inner())
}
