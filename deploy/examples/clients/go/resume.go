package main

import (
	"errors"
	"fmt"
	"time"

	orchestrator "example.com/pagantic-client/gen/pagantic/orchestrator/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const firstWait, longestWait = 100 * time.Millisecond, 2 * time.Second

var (
	errDropped = errors.New("the connection was dropped on purpose")
	// A stream that ends without a status counts as a lost connection.
	errEnded = status.Error(codes.Unavailable, "the stream ended before its execution")
)

// resume streams an answer over a connection that breaks. A request in the background goes on when its caller is gone;
// who comes back follows it from the last event.
func resume(c *connection, text string) error {
	request := newChat(text, answerTokens)
	request.Background = true
	request.Hints.Timeout = durationpb.New(c.timeout) // No deadline of a call binds it.
	endsAt := time.Now().Add(c.timeout)
	var a answer
	wait, pieces := firstWait, 0
	take := func(next *event) error {
		a.take(next)
		wait = firstWait
		if next.GetContentDelta() != nil {
			if pieces++; pieces == enoughPieces {
				return errDropped
			}
		}
		return nil
	}
	for a.response == nil {
		err := beginOrFollow(c, request, a.sequence, endsAt, take)
		if err == nil && a.response == nil {
			err = errEnded
		}
		if errors.Is(err, errDropped) {
			note("\ndropped: after event %d", a.sequence)
			err = c.drop()
		} else if status.Code(err) == codes.Unavailable && time.Now().Add(wait).Before(endsAt) {
			note("\nlost: after event %d", a.sequence)
			time.Sleep(wait)
			wait, err = min(2*wait, longestWait), nil
		}
		if err != nil {
			return err
		}
		a.rewind()
	}
	fmt.Println()
	return ofResponse(a.response.Error)
}

// beginOrFollow reads the stream of a request, which is begun where no event of it has arrived; the same id begins it
// once.
func beginOrFollow(
	c *connection, request *orchestrator.SystemRequest, sequence int64, endsAt time.Time, take func(*event) error,
) error {
	ctx, stop := c.context(time.Until(endsAt))
	defer stop()
	var events stream
	var err error
	if sequence == 0 {
		events, err = c.stub.ExecuteStream(ctx, request)
	} else {
		note("follows: event %d", sequence)
		following := &orchestrator.FollowExecutionRequest{RequestId: request.RequestId, AfterSequence: sequence}
		events, err = c.stub.FollowExecution(ctx, following)
	}
	if err != nil {
		return err
	}
	return read(events, take)
}
