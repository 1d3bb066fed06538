use std::{env, error::Error, fs, net::IpAddr, time::Duration};

use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri};

use crate::pagantic::orchestrator::v1::orchestrator_service_client::OrchestratorServiceClient;

/// The channel to an orchestrator, its stub, and what each call carries.
pub struct Connection {
    pub stub: OrchestratorServiceClient<Channel>,
    pub timeout: Duration,
    endpoint: Endpoint,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Connection {
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let address = setting("PAGANTIC_ADDRESS").unwrap_or_else(|| "localhost:50051".into());
        let address = if address.contains("://") { address } else { format!("http://{address}") };
        let uri: Uri = address.parse().map_err(|error| format!("PAGANTIC_ADDRESS {address:?}: {error}"))?;
        if uri.host().unwrap_or_default().is_empty() {
            return Err("PAGANTIC_ADDRESS has no host: call host:port or https://host:port".into());
        }
        let is_encrypted = uri.scheme_str() == Some("https");
        let key = setting("PAGANTIC_API_KEY").map(|key| key.trim().to_owned());
        if key.is_some() && !is_encrypted && !is_loopback(uri.host().unwrap_or_default()) {
            return Err("the API key would travel in plain text: call https://host:port".into());
        }
        let mut endpoint = Endpoint::from(uri);
        if is_encrypted {
            endpoint = endpoint.tls_config(trust()?)?;
        }
        let seconds: f64 = setting("PAGANTIC_TIMEOUT_S").unwrap_or_else(|| "120".into()).parse()?;
        Ok(Self {
            stub: OrchestratorServiceClient::new(endpoint.connect_lazy()),
            timeout: Duration::try_from_secs_f64(seconds)?,
            authorization: key.map(|key| format!("Bearer {key}").parse()).transpose()?,
            endpoint,
        })
    }

    /// Close the connection with everything that runs on it, and open another one.
    pub fn drop_it(&mut self) {
        self.stub = OrchestratorServiceClient::new(self.endpoint.connect_lazy());
    }

    /// Return a call with its deadline and its credentials.
    pub fn call<T>(&self, message: T) -> Request<T> {
        self.call_within(message, self.timeout)
    }

    pub fn call_within<T>(&self, message: T, timeout: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }
}

/// What proves the server: the authorities of a file, or those of the machine.
fn trust() -> Result<ClientTlsConfig, Box<dyn Error>> {
    let Some(file) = setting("PAGANTIC_TLS_CA_FILE") else {
        return Ok(ClientTlsConfig::new().with_native_roots());
    };
    let pem = fs::read(&file).map_err(|error| format!("PAGANTIC_TLS_CA_FILE: {file}: {error}"))?;
    Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
}

fn is_loopback(host: &str) -> bool {
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
