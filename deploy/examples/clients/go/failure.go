package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	common "example.com/pagantic-client/gen/pagantic/common/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exit codes are those of the command `pagantic`.
const (
	exitFailed = iota + 1
	exitUsage
	exitRequest
	exitInference
	exitTool
	exitOutput
	exitUnavailable
	exitCancelled
)

var exitOfCode = map[string]int{
	"INFERENCE_OUTPUT_TRUNCATED": exitOutput,
	"CONFIG_SOURCE_UNAVAILABLE":  exitUnavailable,
	"QUOTA_RATE":                 exitUnavailable,
	"QUOTA_CONCURRENCY":          exitUnavailable,
}

var exitOfCategory = map[common.ErrorCategory]int{
	common.ErrorCategory_ERROR_CATEGORY_INFERENCE_FAILURE:     exitInference,
	common.ErrorCategory_ERROR_CATEGORY_TOOL_FAILURE:          exitTool,
	common.ErrorCategory_ERROR_CATEGORY_CONSTRAINT_FAILURE:    exitOutput,
	common.ErrorCategory_ERROR_CATEGORY_VALIDATION_FAILURE:    exitOutput,
	common.ErrorCategory_ERROR_CATEGORY_ORCHESTRATION_FAILURE: exitUnavailable,
	common.ErrorCategory_ERROR_CATEGORY_CONFIGURATION_FAILURE: exitRequest,
	common.ErrorCategory_ERROR_CATEGORY_CANCELLATION:          exitCancelled,
	common.ErrorCategory_ERROR_CATEGORY_ACCESS_FAILURE:        exitRequest,
}

var exitOfStatus = map[codes.Code]int{
	codes.Unavailable:       exitUnavailable,
	codes.ResourceExhausted: exitUnavailable,
	codes.Aborted:           exitUnavailable,
	codes.DeadlineExceeded:  exitCancelled,
	codes.Canceled:          exitCancelled,
	codes.Internal:          exitFailed,
	codes.Unknown:           exitFailed,
}

// failure is a request that failed: a status with its details, or the error of a response.
type failure struct {
	from       string
	status     codes.Code // OK of a response
	name       string
	message    string
	described  *common.SystemError // nil where nothing described it, such as a connection that was refused
	retryAfter *time.Duration
}

func (f *failure) Error() string { return f.message }

// ofStatus decodes the details of a status: ErrorInfo names the failure, SystemError describes it.
func ofStatus(s *status.Status) *failure {
	name := statusName(s.Code())
	f := &failure{from: "status " + name, status: s.Code(), name: name, message: s.Message()}
	for _, detail := range s.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			f.name = detail.Reason
		case *common.SystemError:
			f.described, f.message = detail, detail.Message
		case *errdetails.RetryInfo:
			delay := detail.RetryDelay.AsDuration()
			f.retryAfter = &delay
		}
	}
	return f
}

// ofResponse reads the error of a response; nil means success.
func ofResponse(described *common.SystemError) error {
	if described == nil {
		return nil
	}
	return &failure{
		from:      "response",
		name:      strings.TrimPrefix(described.Code.String(), "ERROR_CODE_"),
		message:   described.Message,
		described: described,
	}
}

func (f *failure) exitCode() int {
	byCategory := exitOfCategory[f.described.GetCategory()]
	return cmp.Or(exitOfCode[f.name], byCategory, exitOfStatus[f.status], exitRequest)
}

// show prints what failed, where it belongs, and what to do next.
func (f *failure) show() {
	note("error: %s", f.name)
	note("from: %s", f.from)
	if category := f.described.GetCategory(); category != 0 {
		note("category: %s", strings.TrimPrefix(category.String(), "ERROR_CATEGORY_"))
	}
	note("message: %s", f.message)
	if f.described != nil {
		note("retryable: %s", map[bool]string{true: "yes", false: "no"}[f.described.Retryable])
	}
	if f.retryAfter != nil {
		note("retry after: %.1f s", f.retryAfter.Seconds())
	}
}

// statusName writes a status as the contract does, which is not as Go does: INVALID_ARGUMENT for InvalidArgument.
func statusName(code codes.Code) string {
	var name strings.Builder
	for at, letter := range code.String() {
		if at > 0 && letter >= 'A' && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return map[bool]string{true: "CANCELLED", false: strings.ToUpper(name.String())}[code == codes.Canceled]
}

func note(format string, values ...any) {
	fmt.Fprintln(os.Stderr, printable(fmt.Sprintf(format, values...)))
}
