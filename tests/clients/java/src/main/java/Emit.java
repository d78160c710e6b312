import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.logs.Severity;
import io.opentelemetry.api.metrics.Meter;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Context;
import io.opentelemetry.exporter.otlp.http.logs.OtlpHttpLogRecordExporter;
import io.opentelemetry.exporter.otlp.http.metrics.OtlpHttpMetricExporter;
import io.opentelemetry.exporter.otlp.http.trace.OtlpHttpSpanExporter;
import io.opentelemetry.exporter.otlp.logs.OtlpGrpcLogRecordExporter;
import io.opentelemetry.exporter.otlp.metrics.OtlpGrpcMetricExporter;
import io.opentelemetry.exporter.otlp.trace.OtlpGrpcSpanExporter;
import io.opentelemetry.sdk.logs.SdkLoggerProvider;
import io.opentelemetry.sdk.logs.export.BatchLogRecordProcessor;
import io.opentelemetry.sdk.logs.export.LogRecordExporter;
import io.opentelemetry.sdk.metrics.Aggregation;
import io.opentelemetry.sdk.metrics.InstrumentSelector;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.metrics.View;
import io.opentelemetry.sdk.metrics.export.MetricExporter;
import io.opentelemetry.sdk.metrics.export.PeriodicMetricReader;
import io.opentelemetry.sdk.resources.Resource;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.BatchSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** One of everything, by the official Java SDK. What is sent is in tests/support/one_of_everything.py. */
public final class Emit {
  private record Exporters(SpanExporter spans, MetricExporter metrics, LogRecordExporter logs) {}

  public static void main(String[] arguments) {
    String protocol = arguments[0];
    String compression = arguments[1];
    String endpoint = arguments[2];
    Exporters to = protocol.equals("grpc") ? overGrpc(endpoint, compression) : overHttp(endpoint, compression);
    Resource resource =
        Resource.create(
            Attributes.of(
                AttributeKey.stringKey("service.name"), arguments[3], AttributeKey.longKey("client.number"), 3L));
    SdkTracerProvider tracers =
        SdkTracerProvider.builder()
            .setResource(resource)
            .addSpanProcessor(BatchSpanProcessor.builder(to.spans).build())
            .build();
    SdkMeterProvider meters =
        SdkMeterProvider.builder()
            .setResource(resource)
            .registerMetricReader(PeriodicMetricReader.create(to.metrics))
            .registerView(
                InstrumentSelector.builder().setName("sizes").build(),
                View.builder().setAggregation(Aggregation.base2ExponentialBucketHistogram()).build())
            .build();
    SdkLoggerProvider loggers =
        SdkLoggerProvider.builder()
            .setResource(resource)
            .addLogRecordProcessor(BatchLogRecordProcessor.builder(to.logs).build())
            .build();
    Context inParent = emitSpans(tracers.tracerBuilder("clients").setInstrumentationVersion("1.2.3").build());
    emitMetrics(meters.meterBuilder("clients").setInstrumentationVersion("1.2.3").build());
    loggers
        .loggerBuilder("clients")
        .setInstrumentationVersion("1.2.3")
        .build()
        .logRecordBuilder()
        .setContext(inParent)
        .setTimestamp(at(5))
        .setBody("it happened")
        .setEventName("client.event")
        .setSeverity(Severity.WARN)
        .setSeverityText("WARN")
        .setAttribute(AttributeKey.longKey("code"), 42L)
        .emit();
    tracers.shutdown().join(20, TimeUnit.SECONDS);
    meters.shutdown().join(20, TimeUnit.SECONDS);
    loggers.shutdown().join(20, TimeUnit.SECONDS);
  }

  private static Exporters overGrpc(String endpoint, String compression) {
    return new Exporters(
        OtlpGrpcSpanExporter.builder().setEndpoint(endpoint).setCompression(compression).build(),
        OtlpGrpcMetricExporter.builder().setEndpoint(endpoint).setCompression(compression).build(),
        OtlpGrpcLogRecordExporter.builder().setEndpoint(endpoint).setCompression(compression).build());
  }

  private static Exporters overHttp(String endpoint, String compression) {
    return new Exporters(
        OtlpHttpSpanExporter.builder().setEndpoint(endpoint + "/v1/traces").setCompression(compression).build(),
        OtlpHttpMetricExporter.builder().setEndpoint(endpoint + "/v1/metrics").setCompression(compression).build(),
        OtlpHttpLogRecordExporter.builder().setEndpoint(endpoint + "/v1/logs").setCompression(compression).build());
  }

  private static Instant at(long nanoseconds) {
    return Instant.ofEpochSecond(1_700_000_000L, nanoseconds);
  }

  private static Context emitSpans(Tracer tracer) {
    SpanContext linked =
        SpanContext.create(
            "0102030405060708090a0b0c0d0e0f10", "0102030405060708", TraceFlags.getSampled(), TraceState.getDefault());
    Span parent =
        tracer
            .spanBuilder("parent")
            .setSpanKind(SpanKind.SERVER)
            .setStartTimestamp(at(1))
            .setAttribute("text", "grüße")
            .setAttribute("yes", true)
            .setAttribute("count", -7)
            .setAttribute("ratio", 0.25)
            .setAttribute(AttributeKey.stringArrayKey("words"), List.of("a", "b"))
            .setAttribute(AttributeKey.longArrayKey("numbers"), List.of(1L, 2L))
            .addLink(linked, Attributes.of(AttributeKey.stringKey("why"), "linked"))
            .startSpan();
    parent.addEvent("moment", Attributes.of(AttributeKey.longKey("n"), 1L), at(2));
    parent.setStatus(StatusCode.ERROR, "broken");
    Context inParent = Context.root().with(parent);
    tracer
        .spanBuilder("child")
        .setParent(inParent)
        .setSpanKind(SpanKind.CLIENT)
        .setStartTimestamp(at(3))
        .startSpan()
        .end(at(4));
    parent.end(at(5_000_000_001L));
    return inParent;
  }

  private static void emitMetrics(Meter meter) {
    meter
        .counterBuilder("requests")
        .setUnit("1")
        .build()
        .add(5, Attributes.of(AttributeKey.stringKey("route"), "/a"));
    meter.upDownCounterBuilder("queue").build().add(-2);
    meter.gaugeBuilder("temperature").setUnit("Cel").build().set(21.5);
    var latency =
        meter.histogramBuilder("latency").setUnit("s").setExplicitBucketBoundariesAdvice(List.of(10.0, 20.0)).build();
    latency.record(1);
    latency.record(30);
    var sizes = meter.histogramBuilder("sizes").setUnit("By").ofLongs().build();
    for (long size : new long[] {1, 2, 4}) {
      sizes.record(size);
    }
  }
}
