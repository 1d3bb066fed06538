package example;

import static example.Terminal.note;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.time.Instant;
import java.util.Iterator;
import pagantic.orchestrator.v1.Event.ExecutionEvent;
import pagantic.orchestrator.v1.ExecutionOuterClass.SystemRequest;
import pagantic.orchestrator.v1.ExecutionOuterClass.SystemResponse;
import pagantic.orchestrator.v1.OrchestratorServiceOuterClass.FollowExecutionRequest;

/**
 * Streams an answer over a connection that breaks. A request in the background goes on when its caller is gone; who comes
 * back follows it from the last event.
 */
final class Resume {
    private static final Duration FIRST_WAIT = Duration.ofMillis(100);
    private static final Duration LONGEST_WAIT = Duration.ofSeconds(2);

    private final Connection connection;
    private final SystemRequest request;
    private final Instant endsAt;
    private final Answer answer = new Answer();
    private Duration wait = FIRST_WAIT;
    private int piecesBeforeDrop;

    Resume(Connection connection, SystemRequest chat, int piecesBeforeDrop) {
        var request = chat.toBuilder().setBackground(true);
        // No deadline of a call binds it.
        request.getHintsBuilder().getTimeoutBuilder().setSeconds(connection.timeout.toSeconds());
        this.connection = connection;
        this.request = request.build();
        this.endsAt = Instant.now().plus(connection.timeout);
        this.piecesBeforeDrop = piecesBeforeDrop;
    }

    SystemResponse run() throws InterruptedException {
        while (answer.response() == null) {
            try {
                readUntilDrop();
            } catch (StatusRuntimeException error) {
                boolean isLost = error.getStatus().getCode() == Status.Code.UNAVAILABLE;
                if (!isLost || Instant.now().plus(wait).isAfter(endsAt)) {
                    throw error;
                }
                note("\nlost: after event %d", answer.sequence());
                Thread.sleep(wait.toMillis());
                wait = wait.multipliedBy(2).compareTo(LONGEST_WAIT) < 0 ? wait.multipliedBy(2) : LONGEST_WAIT;
            }
            answer.rewind();
        }
        return answer.response();
    }

    /** Reads events until the stream ends; after some pieces of text the connection is dropped, once. */
    private void readUntilDrop() {
        Iterator<ExecutionEvent> events = beginOrFollow();
        while (events.hasNext()) {
            ExecutionEvent event = events.next();
            answer.take(event);
            wait = FIRST_WAIT;
            if (event.hasContentDelta() && --piecesBeforeDrop == 0) {
                note("\ndropped: after event %d", answer.sequence());
                connection.drop();
                return;
            }
        }
        if (answer.response() == null) { // A stream that ends without a status counts as a lost connection.
            throw ended();
        }
    }

    /** Returns the error of a stream that ended before its execution. */
    static StatusRuntimeException ended() {
        return Status.UNAVAILABLE.withDescription("the stream ended before its execution").asRuntimeException();
    }

    /** Returns the stream of the request, which is begun where no event of it has arrived; the same id begins it once. */
    private Iterator<ExecutionEvent> beginOrFollow() {
        var stub = connection.stub(Duration.between(Instant.now(), endsAt));
        if (answer.sequence() == 0) {
            return stub.executeStream(request);
        }
        note("follows: event %d", answer.sequence());
        return stub.followExecution(FollowExecutionRequest.newBuilder()
                .setRequestId(request.getRequestId())
                .setAfterSequence(answer.sequence())
                .build());
    }
}
