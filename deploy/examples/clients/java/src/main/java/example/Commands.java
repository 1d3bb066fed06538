package example;

import static example.Terminal.note;
import static example.Terminal.write;

import com.google.gson.JsonParser;
import io.grpc.StatusRuntimeException;
import java.util.Iterator;
import java.util.Locale;
import java.util.UUID;
import pagantic.common.v1.MessageOuterClass.Message;
import pagantic.common.v1.MessageOuterClass.Role;
import pagantic.common.v1.MessageOuterClass.ToolChoice;
import pagantic.common.v1.MessageOuterClass.ToolChoiceMode;
import pagantic.constraint.v1.Contract.OutputContract;
import pagantic.orchestrator.v1.Event.ExecutionEvent;
import pagantic.orchestrator.v1.ExecutionOuterClass.ExecutionHints;
import pagantic.orchestrator.v1.ExecutionOuterClass.Mode;
import pagantic.orchestrator.v1.ExecutionOuterClass.SystemRequest;
import pagantic.orchestrator.v1.ExecutionOuterClass.SystemResponse;
import pagantic.orchestrator.v1.ExecutionOuterClass.Voting;
import pagantic.orchestrator.v1.OrchestratorServiceOuterClass.CancelExecutionRequest;
import pagantic.orchestrator.v1.OrchestratorServiceOuterClass.GetExecutionRequest;

/** What the program does. */
record Commands(Connection connection) {
    private static final String PERSON = """
            {"type": "object",
             "properties": {"name": {"type": "string", "maxLength": 40},
                            "age": {"type": "integer", "minimum": 0, "maximum": 150}},
             "required": ["name", "age"], "additionalProperties": false}""";
    private static final String INCIDENT = """
            {"type": "object", "properties": {"severity": {"enum": ["low", "medium", "high"]}},
             "required": ["severity"], "additionalProperties": false}""";
    private static final int ANSWER_TOKENS = 80;
    private static final int LONG_ANSWER_TOKENS = 1000;
    // Pieces of text before a connection is dropped, or an execution cancelled.
    private static final int ENOUGH_PIECES = 5;

    void chat(String text) {
        Answer answer = new Answer();
        connection.stub().executeStream(makeChat(text, ANSWER_TOKENS).build()).forEachRemaining(answer::take);
        write("\n");
        SystemResponse response = checked(answer.response());
        String reason = response.getFinishReason().name().replace("FINISH_REASON_", "");
        note("finished: %s, %d tokens", reason, response.getTokenUsage().getOutputTokens());
    }

    void extract(String text) {
        var contract = OutputContract.newBuilder().setSchemaJson(PERSON);
        SystemResponse response = execute(makeRequest(Mode.MODE_STRUCTURED, text, 100).setOutput(contract));
        write(response.getStructuredOutputJson() + "\n");
        note("guarantee: %s", response.getValidation().getGuarantee().name().replace("GUARANTEE_", ""));
    }

    void vote(String text) {
        var contract = OutputContract.newBuilder().setSchemaJson(INCIDENT);
        var voting = Voting.newBuilder().setN(5);
        var request = makeRequest(Mode.MODE_REDUNDANT, text, 40).setOutput(contract).setVoting(voting);
        SystemResponse response = execute(request);
        var label = JsonParser.parseString(response.getStructuredOutputJson()).getAsJsonObject();
        String severity = label.get("severity").getAsString();
        write(String.format(Locale.ROOT, "label: %s\nconfidence: %.2f\n", severity, response.getConfidence()));
    }

    void resume(String text) throws InterruptedException {
        SystemRequest chat = makeChat(text, ANSWER_TOKENS).build();
        SystemResponse response = new Resume(connection, chat, ENOUGH_PIECES).run();
        write("\n");
        checked(response);
    }

    /** Begins a long answer and cancels it; leaving the stream would do it as well. */
    void cancel(String text) {
        SystemRequest request = makeChat(text, LONG_ANSWER_TOKENS).build();
        String id = request.getRequestId();
        SystemResponse response = SystemResponse.getDefaultInstance();
        int pieces = 0;
        for (Iterator<ExecutionEvent> events = connection.stub().executeStream(request); events.hasNext(); ) {
            ExecutionEvent event = events.next();
            if (event.hasContentDelta() && ++pieces == ENOUGH_PIECES) {
                connection.stub().cancelExecution(CancelExecutionRequest.newBuilder().setRequestId(id).build());
            }
            response = event.getCompleted().getResponse();
        }
        var found = connection.stub().getExecution(GetExecutionRequest.newBuilder().setRequestId(id).build());
        String state = found.getExecution().getState().getCurrent().name().replace("LIFECYCLE_STATE_", "");
        String code = response.getError().getCode().name().replace("ERROR_CODE_", "");
        int tokens = response.getTokenUsage().getOutputTokens();
        write("state: %s\nerror: %s\n".formatted(state, code));
        write("output tokens: %d of %d\n".formatted(tokens, LONG_ANSWER_TOKENS));
    }

    /** Makes two requests that fail: one that is refused by a status, and one whose response has an error. */
    void error() {
        var refused = makeChat("Hello", 8);
        refused.getHintsBuilder().setTemperature(9);
        try {
            execute(refused);
        } catch (StatusRuntimeException status) {
            Failure.ofStatus(status).show();
        }
        execute(makeRequest(Mode.MODE_STRUCTURED, "Hello", 8));
    }

    private SystemResponse execute(SystemRequest.Builder request) {
        return checked(connection.stub().execute(request.build()));
    }

    /** Returns a response that succeeded. */
    private static SystemResponse checked(SystemResponse response) {
        if (response == null) {
            throw Resume.ended();
        }
        if (response.hasError()) {
            throw Failure.ofResponse(response.getError());
        }
        return response;
    }

    /** Returns a request with an id of its own, by which it can be cancelled, followed and sent again. */
    private static SystemRequest.Builder makeRequest(Mode mode, String text, int maxTokens) {
        String id = UUID.randomUUID().toString();
        note("request: %s", id);
        return SystemRequest.newBuilder()
                .setRequestId(id)
                .setMode(mode)
                .addMessages(Message.newBuilder().setRole(Role.ROLE_USER).setContent(text))
                .setHints(ExecutionHints.newBuilder().setMaxTokens(maxTokens));
    }

    /** Returns a chat without tools: its answer is one text. */
    private static SystemRequest.Builder makeChat(String text, int maxTokens) {
        var request = makeRequest(Mode.MODE_CHAT, text, maxTokens);
        request.getHintsBuilder()
                .setToolChoice(ToolChoice.newBuilder().setMode(ToolChoiceMode.TOOL_CHOICE_MODE_NONE));
        return request;
    }
}
