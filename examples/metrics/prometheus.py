"""Serve the metrics of this process's logs to Prometheus: http://localhost:9464/metrics.

    pip install opentelemetry-exporter-prometheus
    python examples/metrics/prometheus.py /tmp/orders        # the port may follow

A queue is written and read, so that there is something to see. Ctrl-C ends it.
"""

import sys
import time

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

from penstock import Queue, metrics

path, port = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9464
metrics.install(MeterProvider(metric_readers=[PrometheusMetricReader()]))

with Queue(path) as queue:
    tailer = queue.tailer("billing")
    server, thread = start_http_server(port, addr="127.0.0.1")
    print(f"http://localhost:{server.server_port}/metrics", flush=True)
    try:
        for number in range(1 << 62):
            queue.append(b"order %d" % number)
            if number % 3 == 0 and tailer.read():
                tailer.commit()  # it falls behind: watch penstock_lag
            time.sleep(0.01)
    except KeyboardInterrupt:
        server.shutdown()
