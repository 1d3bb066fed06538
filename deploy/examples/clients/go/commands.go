package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	common "example.com/pagantic-client/gen/pagantic/common/v1"
	constraint "example.com/pagantic-client/gen/pagantic/constraint/v1"
	orchestrator "example.com/pagantic-client/gen/pagantic/orchestrator/v1"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	person = `{"type": "object",
  "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
  "required": ["name", "age"], "additionalProperties": false}`
	incident = `{"type": "object", "properties": {"severity": {"enum": ["low", "medium", "high"]}},
  "required": ["severity"], "additionalProperties": false}`
	answerTokens, longAnswerTokens = 80, 1000
	// Pieces of text before a connection is dropped, or an execution cancelled.
	enoughPieces = 5
)

type (
	event  = orchestrator.ExecutionEvent
	stream = grpc.ServerStreamingClient[event]
)

// newRequest has an id of its own, by which it can be cancelled, followed and sent again.
func newRequest(mode orchestrator.Mode, text string, maxTokens int32) *orchestrator.SystemRequest {
	request := &orchestrator.SystemRequest{
		RequestId: uuid.NewString(),
		Mode:      mode,
		Messages:  []*common.Message{{Role: common.Role_ROLE_USER, Content: text}},
		Hints:     &orchestrator.ExecutionHints{MaxTokens: maxTokens},
	}
	note("request: %s", request.RequestId)
	return request
}

// newChat is a chat without tools: its answer is one text.
func newChat(text string, maxTokens int32) *orchestrator.SystemRequest {
	request := newRequest(orchestrator.Mode_MODE_CHAT, text, maxTokens)
	none := &common.ToolChoice_Mode{Mode: common.ToolChoiceMode_TOOL_CHOICE_MODE_NONE}
	request.Hints.ToolChoice = &common.ToolChoice{Choice: none}
	return request
}

// execute runs a request to its end; a failure of the response is an error, too.
func execute(c *connection, request *orchestrator.SystemRequest) (*orchestrator.SystemResponse, error) {
	ctx, stop := c.context(c.timeout)
	defer stop()
	response, err := c.stub.Execute(ctx, request)
	if err != nil {
		return nil, err
	}
	return response, ofResponse(response.Error)
}

// read gives each event to take, until the stream ends or take returns an error.
func read(events stream, take func(*event) error) error {
	for {
		next, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := take(next); err != nil {
			return err
		}
	}
}

func chat(c *connection, text string) error {
	ctx, stop := c.context(c.timeout)
	defer stop()
	events, err := c.stub.ExecuteStream(ctx, newChat(text, answerTokens))
	if err != nil {
		return err
	}
	var a answer
	if err := read(events, func(next *event) error { a.take(next); return nil }); err != nil {
		return err
	}
	fmt.Println()
	if a.response == nil {
		return errEnded
	}
	if err := ofResponse(a.response.Error); err != nil {
		return err
	}
	reason := strings.TrimPrefix(a.response.FinishReason.String(), "FINISH_REASON_")
	note("finished: %s, %d tokens", reason, a.response.GetTokenUsage().GetOutputTokens())
	return nil
}

func extract(c *connection, text string) error {
	request := newRequest(orchestrator.Mode_MODE_STRUCTURED, text, 100)
	request.Output = &constraint.OutputContract{SchemaJson: person}
	response, err := execute(c, request)
	if err != nil {
		return err
	}
	fmt.Println(printable(response.StructuredOutputJson))
	note("guarantee: %s", strings.TrimPrefix(response.GetValidation().GetGuarantee().String(), "GUARANTEE_"))
	return nil
}

func vote(c *connection, text string) error {
	request := newRequest(orchestrator.Mode_MODE_REDUNDANT, text, 40)
	request.Output = &constraint.OutputContract{SchemaJson: incident}
	request.Voting = &orchestrator.Voting{N: 5}
	response, err := execute(c, request)
	if err != nil {
		return err
	}
	var label struct{ Severity string }
	if err := json.Unmarshal([]byte(response.StructuredOutputJson), &label); err != nil {
		return err
	}
	fmt.Printf("label: %s\nconfidence: %.2f\n", label.Severity, response.GetConfidence())
	return nil
}

// cancel begins a long answer and cancels it; leaving the stream would do it as well.
func cancel(c *connection, text string) error {
	ctx, stop := c.context(c.timeout)
	defer stop()
	request := newChat(text, longAnswerTokens)
	events, err := c.stub.ExecuteStream(ctx, request)
	if err != nil {
		return err
	}
	pieces, response := 0, (*orchestrator.SystemResponse)(nil)
	err = read(events, func(next *event) (err error) {
		if next.GetContentDelta() != nil {
			if pieces++; pieces == enoughPieces {
				_, err = c.stub.CancelExecution(ctx, &orchestrator.CancelExecutionRequest{RequestId: request.RequestId})
			}
		}
		if completed := next.GetCompleted(); completed != nil {
			response = completed.Response
		}
		return err
	})
	if err != nil {
		return err
	}
	found, err := c.stub.GetExecution(ctx, &orchestrator.GetExecutionRequest{RequestId: request.RequestId})
	if err != nil {
		return err
	}
	state := strings.TrimPrefix(found.GetExecution().GetState().GetCurrent().String(), "LIFECYCLE_STATE_")
	code := strings.TrimPrefix(response.GetError().GetCode().String(), "ERROR_CODE_")
	tokens := response.GetTokenUsage().GetOutputTokens()
	fmt.Printf("state: %s\nerror: %s\noutput tokens: %d of %d\n", state, code, tokens, longAnswerTokens)
	return nil
}

// fail makes two requests that fail: one that is refused by a status, and one whose response has an error.
func fail(c *connection, _ string) error {
	refused := newChat("Hello", 8)
	refused.Hints.Temperature = proto.Float64(9)
	if _, err := execute(c, refused); err != nil {
		ofStatus(status.Convert(err)).show()
	}
	_, err := execute(c, newRequest(orchestrator.Mode_MODE_STRUCTURED, "Hello", 8))
	return err
}
