#!/bin/sh
# Makes the stubs in gen/ from the proto files. The proto files name no Go packages, so each is mapped to one here.
# PROTOC is the compiler, by default `protoc`; its two plugins are the tools of go.mod.
set -eu
cd "$(dirname "$0")"
proto=../../../../proto
GOBIN="$PWD/bin" go install tool
set --
for file in $(cd $proto && find pagantic -name '*.proto' | sort); do
	folder=$(dirname "$file")                                       # pagantic/common/v1
	name=$(echo "$folder" | cut -d / -f 2)v1                        # commonv1
	mapping="M$file=example.com/pagantic-client/gen/$folder;$name"
	set -- "$@" "--go_opt=$mapping" "--go-grpc_opt=$mapping" "$proto/$file"
done
rm -rf gen
PATH="$PWD/bin:$PATH" ${PROTOC:-protoc} -I $proto --go_out=. --go_opt=module=example.com/pagantic-client \
	--go-grpc_out=. --go-grpc_opt=module=example.com/pagantic-client "$@"
