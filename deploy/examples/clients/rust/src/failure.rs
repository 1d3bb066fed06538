use std::{error::Error, time::Duration};

use prost::Message;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::pagantic::common::v1::{ErrorCategory, SystemError};
use crate::terminal::note;

// Exit codes are those of the command `pagantic`.
const EXIT_FAILED: u8 = 1;
pub const EXIT_USAGE: u8 = 2;
const EXIT_REQUEST: u8 = 3;
const EXIT_INFERENCE: u8 = 4;
const EXIT_TOOL: u8 = 5;
const EXIT_OUTPUT: u8 = 6;
const EXIT_UNAVAILABLE: u8 = 7;
const EXIT_CANCELLED: u8 = 8;

/// A request that failed: a status with its details, or the error of a response.
pub struct Failure {
    /// None of a response.
    status: Option<Code>,
    name: String,
    message: String,
    /// None where nothing described it, such as a connection that was refused.
    described: Option<SystemError>,
    retry_after: Option<Duration>,
}

impl From<Status> for Failure {
    /// Decode the details of a status: ErrorInfo names the failure, SystemError describes it.
    fn from(status: Status) -> Self {
        // tonic says UNKNOWN of a connection that breaks during a call. A status of the service has no source.
        let is_broken = status.code() == Code::Unknown && status.source().is_some();
        let code = if is_broken { Code::Unavailable } else { status.code() };
        let described = tonic_types::Status::decode(status.details()).ok().and_then(|details| {
            let mut found = details.details.iter();
            let detail = found.find(|detail| detail.type_url.ends_with("/pagantic.common.v1.SystemError"))?;
            SystemError::decode(&*detail.value).ok()
        });
        let info = status.get_details_error_info();
        Self {
            name: info.map_or_else(|| status_name(code), |info| info.reason),
            message: described.as_ref().map_or_else(|| status.message().into(), |error| error.message.clone()),
            retry_after: status.get_details_retry_info().and_then(|retry| retry.retry_delay),
            status: Some(code),
            described,
        }
    }
}

impl From<SystemError> for Failure {
    /// Read the error of a response.
    fn from(error: SystemError) -> Self {
        Self {
            status: None,
            name: error.code().as_str_name().trim_start_matches("ERROR_CODE_").into(),
            message: error.message.clone(),
            described: Some(error),
            retry_after: None,
        }
    }
}

impl Failure {
    pub fn is_lost(&self) -> bool {
        self.status == Some(Code::Unavailable)
    }

    pub fn exit_code(&self) -> u8 {
        match (self.name.as_str(), self.category(), self.status) {
            ("INFERENCE_OUTPUT_TRUNCATED", ..) => EXIT_OUTPUT,
            ("CONFIG_SOURCE_UNAVAILABLE" | "QUOTA_RATE" | "QUOTA_CONCURRENCY", ..) => EXIT_UNAVAILABLE,
            (_, ErrorCategory::InferenceFailure, _) => EXIT_INFERENCE,
            (_, ErrorCategory::ToolFailure, _) => EXIT_TOOL,
            (_, ErrorCategory::ConstraintFailure | ErrorCategory::ValidationFailure, _) => EXIT_OUTPUT,
            (_, ErrorCategory::OrchestrationFailure, _) => EXIT_UNAVAILABLE,
            (_, ErrorCategory::Cancellation, _) => EXIT_CANCELLED,
            (_, ErrorCategory::ConfigurationFailure | ErrorCategory::AccessFailure, _) => EXIT_REQUEST,
            (_, _, Some(Code::Unavailable | Code::ResourceExhausted | Code::Aborted)) => EXIT_UNAVAILABLE,
            (_, _, Some(Code::DeadlineExceeded | Code::Cancelled)) => EXIT_CANCELLED,
            (_, _, Some(Code::Internal | Code::Unknown)) => EXIT_FAILED,
            _ => EXIT_REQUEST,
        }
    }

    /// Print what failed, where it belongs, and what to do next.
    pub fn show(&self) {
        note(&format!("error: {}", self.name));
        match self.status {
            Some(code) => note(&format!("from: status {}", status_name(code))),
            None => note("from: response"),
        }
        if self.category() != ErrorCategory::Unspecified {
            note(&format!("category: {}", self.category().as_str_name().trim_start_matches("ERROR_CATEGORY_")));
        }
        note(&format!("message: {}", self.message));
        if let Some(error) = &self.described {
            note(&format!("retryable: {}", if error.retryable { "yes" } else { "no" }));
        }
        if let Some(delay) = self.retry_after {
            note(&format!("retry after: {:.1} s", delay.as_secs_f64()));
        }
    }

    fn category(&self) -> ErrorCategory {
        self.described.as_ref().map_or(ErrorCategory::Unspecified, SystemError::category)
    }
}

/// Write a status as the contract does, which is not as Rust does: INVALID_ARGUMENT for InvalidArgument.
fn status_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
