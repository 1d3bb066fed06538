package main

import (
	"fmt"
	"strings"
	"unicode"

	orchestrator "example.com/pagantic-client/gen/pagantic/orchestrator/v1"
)

// answer is the text of an answer as it streams, and how much of it stands on the terminal.
type answer struct {
	response *orchestrator.SystemResponse // set at the end
	sequence int64                        // of the last stored event
	text     string
	shown    string
	stored   int // bytes of the text that streamed before the last stored event
}

// take reads an event, and shows the text that it brings.
func (a *answer) take(event *orchestrator.ExecutionEvent) {
	if event.Sequence > a.sequence { // Deltas repeat the sequence of the stored event before them.
		a.sequence = event.Sequence
		a.stored = len(a.text)
	}
	switch kind := event.Event.(type) {
	case *orchestrator.ExecutionEvent_ContentDelta:
		a.text += kind.ContentDelta.Text
	case *orchestrator.ExecutionEvent_AttemptDiscarded:
		a.text, a.stored = "", 0
	case *orchestrator.ExecutionEvent_Completed:
		a.response = kind.Completed.GetResponse()
		a.text = a.response.GetContent()
	}
	a.show()
}

// rewind forgets the text after the last stored event: who follows from that event gets it again.
func (a *answer) rewind() { a.text = a.text[:a.stored] }

func (a *answer) show() {
	if strings.HasPrefix(a.shown, a.text) {
		return
	}
	rest, continues := strings.CutPrefix(a.text, a.shown)
	if !continues {
		rest = "\n" + a.text
	}
	fmt.Print(printable(rest))
	a.shown = a.text
}

// printable returns the text without control characters, so that a model's answer cannot steer the terminal.
func printable(text string) string {
	return strings.Map(func(character rune) rune {
		if unicode.IsControl(character) && character != '\n' && character != '\t' {
			return unicode.ReplacementChar
		}
		return character
	}, text)
}
