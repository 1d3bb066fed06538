package example;

import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.regex.Pattern;
import javax.net.ssl.TrustManagerFactory;
import pagantic.orchestrator.v1.OrchestratorServiceGrpc;
import pagantic.orchestrator.v1.OrchestratorServiceGrpc.OrchestratorServiceBlockingStub;

/** The channel to an orchestrator, its stub, and what each call carries. */
final class Connection implements AutoCloseable {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    private static final Pattern LOOPBACK = Pattern.compile("localhost|127\\.[\\d.]+|\\[::1]");

    final Duration timeout;
    private final URI address;
    private final ChannelCredentials credentials;
    private final Metadata metadata = new Metadata();
    private ManagedChannel channel;

    Connection() throws IOException, GeneralSecurityException {
        String named = setting("PAGANTIC_ADDRESS", "localhost:50051");
        address = URI.create(named.contains("://") ? named : "http://" + named);
        if (address.getHost() == null) {
            throw new IOException("PAGANTIC_ADDRESS has no host: call host:port or https://host:port");
        }
        timeout = Duration.ofMillis(Math.round(1000 * Double.parseDouble(setting("PAGANTIC_TIMEOUT_S", "120"))));
        credentials = isEncrypted() ? trust(setting("PAGANTIC_TLS_CA_FILE", "")) : InsecureChannelCredentials.create();
        String key = setting("PAGANTIC_API_KEY", "").strip();
        if (!key.isEmpty()) {
            metadata.put(AUTHORIZATION, "Bearer " + key);
            if (!isEncrypted() && !LOOPBACK.matcher(address.getHost()).matches()) {
                throw new IOException("the API key would travel in plain text: call https://host:port");
            }
        }
        open();
    }

    /** Returns the stub for a call that ends within the usual time. */
    OrchestratorServiceBlockingStub stub() {
        return stub(timeout);
    }

    /** Returns the stub for a call with its deadline and its credentials. */
    OrchestratorServiceBlockingStub stub(Duration within) {
        return OrchestratorServiceGrpc.newBlockingStub(channel)
                .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(metadata))
                .withDeadlineAfter(within);
    }

    /** Closes the connection with everything that runs on it, and opens another one. */
    void drop() {
        close();
        open();
    }

    @Override
    public void close() {
        channel.shutdownNow();
    }

    private void open() {
        int port = address.getPort() >= 0 ? address.getPort() : isEncrypted() ? 443 : 80;
        channel = Grpc.newChannelBuilderForAddress(address.getHost(), port, credentials).build();
    }

    private boolean isEncrypted() {
        return "https".equals(address.getScheme());
    }

    /**
     * Returns what proves the server: the authorities of a file, or those that Java knows. The file is read here because
     * grpc-java would keep only one of several authorities of the same name, and there are two while one is replaced.
     */
    private static ChannelCredentials trust(String file) throws IOException, GeneralSecurityException {
        if (file.isEmpty()) {
            return TlsChannelCredentials.create();
        }
        KeyStore authorities = KeyStore.getInstance(KeyStore.getDefaultType());
        authorities.load(null, null);
        try (InputStream pem = Files.newInputStream(Path.of(file))) {
            for (Certificate authority : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                authorities.setCertificateEntry(String.valueOf(authorities.size()), authority);
            }
        }
        var factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(authorities);
        return TlsChannelCredentials.newBuilder().trustManager(factory.getTrustManagers()).build();
    }

    private static String setting(String name, String otherwise) {
        String value = System.getenv(name);
        return value == null || value.isEmpty() ? otherwise : value;
    }
}
