package example;

import static example.Terminal.note;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.Optional;
import pagantic.common.v1.Error.ErrorCategory;
import pagantic.common.v1.Error.SystemError;

/** A request that failed: a status with its details, or the error of a response. */
final class Failure extends RuntimeException {
    // Exit codes are those of the command `pagantic`.
    static final int EXIT_USAGE = 2;
    private static final int EXIT_FAILED = 1;
    private static final int EXIT_REQUEST = 3;
    private static final int EXIT_INFERENCE = 4;
    private static final int EXIT_TOOL = 5;
    private static final int EXIT_OUTPUT = 6;
    private static final int EXIT_UNAVAILABLE = 7;
    private static final int EXIT_CANCELLED = 8;

    private final transient Status.Code status; // OK of a response
    private final String name;
    private final SystemError described; // the default where nothing described it, such as a refused connection
    private final boolean isDescribed;
    private final Double retryAfterSeconds;

    private Failure(Status.Code status, String name, String message, Optional<SystemError> described, Double retry) {
        super(message);
        this.status = status;
        this.name = name;
        this.described = described.orElse(SystemError.getDefaultInstance());
        this.isDescribed = described.isPresent();
        this.retryAfterSeconds = retry;
    }

    /** Decodes the details of a status: ErrorInfo names the failure, SystemError describes it. */
    static Failure ofStatus(StatusRuntimeException error) {
        Status.Code code = error.getStatus().getCode();
        String name = code.name();
        Optional<SystemError> described = Optional.empty();
        Double retryAfterSeconds = null;
        com.google.rpc.Status status = StatusProto.fromThrowable(error);
        try {
            for (Any detail : status.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    name = detail.unpack(ErrorInfo.class).getReason();
                } else if (detail.is(SystemError.class)) {
                    described = Optional.of(detail.unpack(SystemError.class));
                } else if (detail.is(RetryInfo.class)) {
                    var delay = detail.unpack(RetryInfo.class).getRetryDelay();
                    retryAfterSeconds = delay.getSeconds() + delay.getNanos() / 1e9;
                }
            }
        } catch (InvalidProtocolBufferException invalid) {
            throw new IllegalStateException("the details of the status cannot be read", invalid);
        }
        String message = described.map(SystemError::getMessage).orElseGet(() -> messageOf(error));
        return new Failure(code, name, message, described, retryAfterSeconds);
    }

    /** Returns what the transport says; the innermost cause says why a connection failed. */
    private static String messageOf(StatusRuntimeException error) {
        Throwable cause = error;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause == error ? String.valueOf(error.getStatus().getDescription()) : cause.toString();
    }

    /** Reads the error of a response. */
    static Failure ofResponse(SystemError error) {
        String name = error.getCode().name().replace("ERROR_CODE_", "");
        return new Failure(Status.Code.OK, name, error.getMessage(), Optional.of(error), null);
    }

    /** Prints what failed, where it belongs, and what to do next. */
    void show() {
        note("error: %s", name);
        note("from: %s", status == Status.Code.OK ? "response" : "status " + status);
        if (described.getCategory() != ErrorCategory.ERROR_CATEGORY_UNSPECIFIED) {
            note("category: %s", described.getCategory().name().replace("ERROR_CATEGORY_", ""));
        }
        note("message: %s", getMessage());
        if (isDescribed) {
            note("retryable: %s", described.getRetryable() ? "yes" : "no");
        }
        if (retryAfterSeconds != null) {
            note("retry after: %.1f s", retryAfterSeconds);
        }
    }

    int exitCode() {
        return switch (name) {
            case "INFERENCE_OUTPUT_TRUNCATED" -> EXIT_OUTPUT;
            case "CONFIG_SOURCE_UNAVAILABLE", "QUOTA_RATE", "QUOTA_CONCURRENCY" -> EXIT_UNAVAILABLE;
            default -> exitCodeOfCategory();
        };
    }

    private int exitCodeOfCategory() {
        return switch (described.getCategory()) {
            case ERROR_CATEGORY_INFERENCE_FAILURE -> EXIT_INFERENCE;
            case ERROR_CATEGORY_TOOL_FAILURE -> EXIT_TOOL;
            case ERROR_CATEGORY_CONSTRAINT_FAILURE, ERROR_CATEGORY_VALIDATION_FAILURE -> EXIT_OUTPUT;
            case ERROR_CATEGORY_ORCHESTRATION_FAILURE -> EXIT_UNAVAILABLE;
            case ERROR_CATEGORY_CONFIGURATION_FAILURE, ERROR_CATEGORY_ACCESS_FAILURE -> EXIT_REQUEST;
            case ERROR_CATEGORY_CANCELLATION -> EXIT_CANCELLED;
            default -> exitCodeOfStatus();
        };
    }

    private int exitCodeOfStatus() {
        return switch (status) {
            case UNAVAILABLE, RESOURCE_EXHAUSTED, ABORTED -> EXIT_UNAVAILABLE;
            case DEADLINE_EXCEEDED, CANCELLED -> EXIT_CANCELLED;
            case INTERNAL, UNKNOWN -> EXIT_FAILED;
            default -> EXIT_REQUEST;
        };
    }
}
