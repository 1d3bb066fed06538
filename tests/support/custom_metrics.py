"""An adapter of metrics, as Kubernetes asks it: every pod of the namespace reports what the test says."""

import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.certificates import Authority, TlsFiles

GROUP = "custom.metrics.k8s.io/v1beta1"
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "adapter", "namespace": "default"},
    "spec": {"type": "ExternalName", "externalName": "localhost"},
}


def api_service(port):
    """Return what tells the API server where the adapter is."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.custom.metrics.k8s.io"},
        "spec": {
            "group": "custom.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": "adapter", "namespace": "default", "port": port},
        },
    }


@contextmanager
def serving_metrics(plane, values, folder):
    """Serve `values`, by metric, for every pod of inference; they may be changed meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0].strip("/").split("/")
            is_ours = "/".join(path[1:3]) == GROUP  # the server looks for documents, too
            body = json.dumps(answer(path) if is_ours else {}).encode()
            self.send_response(200 if is_ours else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    def answer(path):
        if len(path) == 3:  # apis, the group and its version
            resources = [
                {
                    "name": f"pods/{name}",
                    "singularName": "",
                    "namespaced": True,
                    "kind": "MetricValueList",
                    "verbs": ["get"],
                }
                for name in values
            ]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": resources}
        pods = plane.get("pods", "-n", "pagantic", "-l", "app.kubernetes.io/component=inference")
        return {"kind": "MetricValueList", "apiVersion": GROUP, "items": [item(pod, path[-1]) for pod in pods]}

    def item(pod, name):
        described = {"kind": "Pod", "apiVersion": "/v1", "namespace": "pagantic", "name": pod["metadata"]["name"]}
        taken = pod["metadata"]["creationTimestamp"]
        return {"describedObject": described, "metricName": name, "timestamp": taken, "value": str(values[name])}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files = TlsFiles(folder).write(Authority().issue())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.chain, files.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        plane.apply(SERVICE, api_service(server.server_address[1]))
        yield
    finally:
        plane.kubectl("delete", "apiservice", "v1beta1.custom.metrics.k8s.io")
        server.shutdown()
        server.server_close()
        thread.join(60)
