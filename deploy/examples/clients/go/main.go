// Client uses pagantic by gRPC: `client COMMAND [TEXT]`. Without arguments it lists the commands.
package main

import (
	"errors"
	"os"
	"strings"

	"google.golang.org/grpc/status"
)

//go:generate sh generate.sh

const usage = `usage: client COMMAND [TEXT]
  chat TEXT     stream the answer to a text
  extract TEXT  get a person's name and age out of a text, as JSON that satisfies a schema
  vote TEXT     have five samples vote how severe an incident is
  resume TEXT   drop the connection in the middle of an answer, and go on where it broke off
  cancel TEXT   begin a long answer, cancel it, and see that it has stopped
  error         make two requests that fail, and say how
environment: PAGANTIC_ADDRESS (localhost:50051, or https://host:port), PAGANTIC_API_KEY, PAGANTIC_TLS_CA_FILE,
  PAGANTIC_TIMEOUT_S (120)`

var commands = map[string]func(*connection, string) error{
	"chat": chat, "extract": extract, "vote": vote, "resume": resume, "cancel": cancel, "error": fail,
}

func main() { os.Exit(run(os.Args[1:])) }

func run(arguments []string) int {
	name, texts := "", []string{}
	if len(arguments) > 0 {
		name, texts = arguments[0], arguments[1:]
	}
	command, known := commands[name]
	if !known || (len(texts) == 1) == (name == "error") || len(texts) > 1 {
		note("%s", usage)
		return exitUsage
	}
	c, err := connect()
	if err != nil {
		note("client: %v", err)
		return exitUsage
	}
	defer func() { _ = c.channel.Close() }()
	return exitCodeOf(command(c, strings.Join(texts, "")))
}

// exitCodeOf shows a failure, and returns what the program ends with.
func exitCodeOf(err error) int {
	if err == nil {
		return 0
	}
	var failed *failure
	if !errors.As(err, &failed) {
		failed = ofStatus(status.Convert(err))
	}
	failed.show()
	return failed.exitCode()
}
