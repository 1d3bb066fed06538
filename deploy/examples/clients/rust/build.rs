//! Makes the stubs from the proto files, with a compiler in Rust: no protoc is needed.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

const PROTO: &str = "../../../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}/pagantic");
    let mut files = Vec::new();
    find(&Path::new(PROTO).join("pagantic"), &mut files)?;
    let descriptors = protox::compile(files, [PROTO])?;
    tonic_prost_build::configure().build_server(false).include_file("contract.rs").compile_fds(descriptors)?;
    Ok(())
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
