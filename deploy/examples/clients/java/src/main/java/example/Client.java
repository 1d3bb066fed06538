package example;

import static example.Terminal.note;

import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.Set;

/** A program that uses pagantic by gRPC: `client COMMAND [TEXT]`. Without arguments it lists the commands. */
public final class Client {
    private static final String USAGE = """
            usage: client COMMAND [TEXT]
              chat TEXT     stream the answer to a text
              extract TEXT  get a person's name and age out of a text, as JSON that satisfies a schema
              vote TEXT     have five samples vote how severe an incident is
              resume TEXT   drop the connection in the middle of an answer, and go on where it broke off
              cancel TEXT   begin a long answer, cancel it, and see that it has stopped
              error         make two requests that fail, and say how
            environment: PAGANTIC_ADDRESS (localhost:50051, or https://host:port), PAGANTIC_API_KEY, PAGANTIC_TLS_CA_FILE,
              PAGANTIC_TIMEOUT_S (120)""";
    private static final Set<String> WITH_TEXT = Set.of("chat", "extract", "vote", "resume", "cancel");

    private Client() {}

    public static void main(String[] arguments) throws InterruptedException {
        System.exit(run(arguments));
    }

    private static int run(String[] arguments) throws InterruptedException {
        boolean isKnown = arguments.length == 2 && WITH_TEXT.contains(arguments[0])
                || arguments.length == 1 && arguments[0].equals("error");
        if (!isKnown) {
            note("%s", USAGE);
            return Failure.EXIT_USAGE;
        }
        Connection connection;
        try {
            connection = new Connection();
        } catch (IOException | GeneralSecurityException | IllegalArgumentException wrong) {
            note("client: %s", wrong.getMessage());
            return Failure.EXIT_USAGE;
        }
        try (connection) {
            run(new Commands(connection), arguments);
            return 0;
        } catch (StatusRuntimeException status) {
            Failure failure = Failure.ofStatus(status);
            failure.show();
            return failure.exitCode();
        } catch (Failure failure) {
            failure.show();
            return failure.exitCode();
        }
    }

    private static void run(Commands commands, String[] arguments) throws InterruptedException {
        switch (arguments[0]) {
            case "chat" -> commands.chat(arguments[1]);
            case "extract" -> commands.extract(arguments[1]);
            case "vote" -> commands.vote(arguments[1]);
            case "resume" -> commands.resume(arguments[1]);
            case "cancel" -> commands.cancel(arguments[1]);
            default -> commands.error();
        }
    }
}
