package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	orchestrator "example.com/pagantic-client/gen/pagantic/orchestrator/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// connection is the channel to an orchestrator, its stub, and what each call carries.
type connection struct {
	target  string
	trust   credentials.TransportCredentials
	key     string
	timeout time.Duration
	channel *grpc.ClientConn
	stub    orchestrator.OrchestratorServiceClient
}

func connect() (*connection, error) {
	address, err := parseAddress(setting("PAGANTIC_ADDRESS", "localhost:50051"))
	if err != nil {
		return nil, err
	}
	seconds, err := strconv.ParseFloat(setting("PAGANTIC_TIMEOUT_S", "120"), 64)
	if err != nil {
		return nil, fmt.Errorf("PAGANTIC_TIMEOUT_S: %w", err)
	}
	c := &connection{
		target:  address.Host,
		trust:   insecure.NewCredentials(),
		key:     strings.TrimSpace(os.Getenv("PAGANTIC_API_KEY")),
		timeout: time.Duration(seconds * float64(time.Second)),
	}
	if address.Scheme == "https" {
		if c.trust, err = trust(os.Getenv("PAGANTIC_TLS_CA_FILE")); err != nil {
			return nil, err
		}
	} else if c.key != "" && !isLoopback(address.Hostname()) {
		return nil, errors.New("the API key would travel in plain text: call https://host:port")
	}
	return c, c.open()
}

// open connects; gRPC does so with the first call.
func (c *connection) open() (err error) {
	c.channel, err = grpc.NewClient(c.target, grpc.WithTransportCredentials(c.trust))
	c.stub = orchestrator.NewOrchestratorServiceClient(c.channel)
	return err
}

// drop closes the connection with everything that runs on it, and opens another one.
func (c *connection) drop() error {
	_ = c.channel.Close()
	return c.open()
}

// context returns the deadline and the credentials of one call.
func (c *connection) context(timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx := context.Background()
	if c.key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.key)
	}
	return context.WithTimeout(ctx, timeout)
}

func parseAddress(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	address, err := url.Parse(text)
	if err == nil && address.Hostname() == "" {
		return nil, errors.New("PAGANTIC_ADDRESS has no host: call host:port or https://host:port")
	}
	if err == nil && address.Port() == "" {
		port := map[string]string{"http": "80", "https": "443"}[address.Scheme]
		address.Host = net.JoinHostPort(address.Hostname(), port)
	}
	return address, err
}

// trust returns what proves the server: the authorities of a file, or those of the machine.
func trust(file string) (credentials.TransportCredentials, error) {
	if file == "" {
		return credentials.NewTLS(&tls.Config{}), nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("PAGANTIC_TLS_CA_FILE: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("PAGANTIC_TLS_CA_FILE: %s has no certificate", file)
	}
	return credentials.NewTLS(&tls.Config{RootCAs: authorities}), nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
