// One of everything, by the official JavaScript SDK. What is sent is in tests/support/one_of_everything.py.
import { context, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import { SeverityNumber } from '@opentelemetry/api-logs';
import { resourceFromAttributes } from '@opentelemetry/resources';
import { BasicTracerProvider, BatchSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { AggregationType, MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics';
import { BatchLogRecordProcessor, LoggerProvider } from '@opentelemetry/sdk-logs';

const [protocol, compression, endpoint, name] = process.argv.slice(2);
const word = { grpc: 'grpc', 'http/protobuf': 'proto', 'http/json': 'http' }[protocol];
const paths = { trace: 'traces', metrics: 'metrics', logs: 'logs' };

async function exporter(signal, type) {
  const module = await import(`@opentelemetry/exporter-${signal}-otlp-${word}`);
  const url = protocol === 'grpc' ? endpoint : `${endpoint}/v1/${paths[signal]}`;
  return new module[type]({ url, compression });
}

const resource = resourceFromAttributes({ 'service.name': name, 'client.number': 3 });
const at = (nanoseconds) => [1_700_000_000, nanoseconds];

const tracers = new BasicTracerProvider({
  resource,
  spanProcessors: [new BatchSpanProcessor(await exporter('trace', 'OTLPTraceExporter'))],
});
const tracer = tracers.getTracer('clients', '1.2.3');
const parent = tracer.startSpan('parent', {
  kind: SpanKind.SERVER,
  startTime: at(1),
  attributes: {
    text: 'grüße', yes: true, count: -7, ratio: 0.25, words: ['a', 'b'], numbers: [1, 2],
  },
  links: [{
    context: { traceId: '0102030405060708090a0b0c0d0e0f10', spanId: '0102030405060708', traceFlags: 1 },
    attributes: { why: 'linked' },
  }],
});
parent.addEvent('moment', { n: 1 }, at(2));
parent.setStatus({ code: SpanStatusCode.ERROR, message: 'broken' });
const inParent = trace.setSpan(context.active(), parent);
tracer.startSpan('child', { kind: SpanKind.CLIENT, startTime: at(3) }, inParent).end(at(4));
parent.end([1_700_000_005, 1]);

const reader = new PeriodicExportingMetricReader({
  exporter: await exporter('metrics', 'OTLPMetricExporter'), exportIntervalMillis: 3_600_000,
});
const meters = new MeterProvider({
  resource,
  readers: [reader],
  views: [{
    instrumentName: 'sizes',
    aggregation: { type: AggregationType.EXPONENTIAL_HISTOGRAM },
  }],
});
const meter = meters.getMeter('clients', '1.2.3');
meter.createCounter('requests', { unit: '1' }).add(5, { route: '/a' });
meter.createUpDownCounter('queue').add(-2);
meter.createGauge('temperature', { unit: 'Cel' }).record(21.5);
const latency = meter.createHistogram('latency', {
  unit: 's', advice: { explicitBucketBoundaries: [10, 20] },
});
latency.record(1);
latency.record(30);
const sizes = meter.createHistogram('sizes', { unit: 'By' });
for (const size of [1, 2, 4]) sizes.record(size);

const loggers = new LoggerProvider({
  resource,
  processors: [new BatchLogRecordProcessor({ exporter: await exporter('logs', 'OTLPLogExporter') })],
});
loggers.getLogger('clients', '1.2.3').emit({
  body: 'it happened',
  eventName: 'client.event',
  severityNumber: SeverityNumber.WARN,
  severityText: 'WARN',
  timestamp: at(5),
  attributes: { code: 42 },
  context: inParent,
});

for (const provider of [tracers, meters, loggers]) await provider.shutdown().catch(console.error);
