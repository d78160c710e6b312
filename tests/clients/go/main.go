// One of everything, by the official Go SDK. What is sent is in tests/support/one_of_everything.py.
package main

import (
	"context"
	"log"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	logapi "go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func at(nanoseconds int64) time.Time { return time.Unix(1_700_000_000, nanoseconds) }

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

type exporters struct {
	spans   sdktrace.SpanExporter
	metrics sdkmetric.Exporter
	logs    sdklog.Exporter
}

func overGrpc(ctx context.Context, address string, gzip bool) exporters {
	spans := []otlptracegrpc.Option{otlptracegrpc.WithInsecure(), otlptracegrpc.WithEndpoint(address)}
	metrics := []otlpmetricgrpc.Option{otlpmetricgrpc.WithInsecure(), otlpmetricgrpc.WithEndpoint(address)}
	logs := []otlploggrpc.Option{otlploggrpc.WithInsecure(), otlploggrpc.WithEndpoint(address)}
	if gzip {
		spans = append(spans, otlptracegrpc.WithCompressor("gzip"))
		metrics = append(metrics, otlpmetricgrpc.WithCompressor("gzip"))
		logs = append(logs, otlploggrpc.WithCompressor("gzip"))
	}
	return exporters{
		must(otlptracegrpc.New(ctx, spans...)),
		must(otlpmetricgrpc.New(ctx, metrics...)),
		must(otlploggrpc.New(ctx, logs...)),
	}
}

func overHttp(ctx context.Context, address string, gzip bool) exporters {
	spans := []otlptracehttp.Option{otlptracehttp.WithInsecure(), otlptracehttp.WithEndpoint(address)}
	metrics := []otlpmetrichttp.Option{otlpmetrichttp.WithInsecure(), otlpmetrichttp.WithEndpoint(address)}
	logs := []otlploghttp.Option{otlploghttp.WithInsecure(), otlploghttp.WithEndpoint(address)}
	if gzip {
		spans = append(spans, otlptracehttp.WithCompression(otlptracehttp.GzipCompression))
		metrics = append(metrics, otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression))
		logs = append(logs, otlploghttp.WithCompression(otlploghttp.GzipCompression))
	}
	return exporters{
		must(otlptracehttp.New(ctx, spans...)),
		must(otlpmetrichttp.New(ctx, metrics...)),
		must(otlploghttp.New(ctx, logs...)),
	}
}

func emitSpans(ctx context.Context, provider *sdktrace.TracerProvider) context.Context {
	tracer := provider.Tracer("clients", trace.WithInstrumentationVersion("1.2.3"))
	linked := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID:    trace.TraceID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		SpanID:     trace.SpanID{1, 2, 3, 4, 5, 6, 7, 8},
		TraceFlags: trace.FlagsSampled,
	})
	inParent, parent := tracer.Start(ctx, "parent",
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithTimestamp(at(1)),
		trace.WithAttributes(
			attribute.String("text", "grüße"), attribute.Bool("yes", true), attribute.Int("count", -7),
			attribute.Float64("ratio", 0.25), attribute.StringSlice("words", []string{"a", "b"}),
			attribute.IntSlice("numbers", []int{1, 2}),
		),
		trace.WithLinks(trace.Link{
			SpanContext: linked, Attributes: []attribute.KeyValue{attribute.String("why", "linked")},
		}),
	)
	parent.AddEvent("moment", trace.WithTimestamp(at(2)), trace.WithAttributes(attribute.Int("n", 1)))
	parent.SetStatus(codes.Error, "broken")
	_, child := tracer.Start(inParent, "child", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(at(3)))
	child.End(trace.WithTimestamp(at(4)))
	parent.End(trace.WithTimestamp(at(5_000_000_001)))
	return inParent
}

func emitMetrics(ctx context.Context, provider *sdkmetric.MeterProvider) {
	meter := provider.Meter("clients", metric.WithInstrumentationVersion("1.2.3"))
	must(meter.Int64Counter("requests", metric.WithUnit("1"))).
		Add(ctx, 5, metric.WithAttributes(attribute.String("route", "/a")))
	must(meter.Int64UpDownCounter("queue")).Add(ctx, -2)
	must(meter.Float64Gauge("temperature", metric.WithUnit("Cel"))).Record(ctx, 21.5)
	latency := must(meter.Float64Histogram("latency", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(10, 20)))
	latency.Record(ctx, 1)
	latency.Record(ctx, 30)
	sizes := must(meter.Int64Histogram("sizes", metric.WithUnit("By")))
	for _, size := range []int64{1, 2, 4} {
		sizes.Record(ctx, size)
	}
}

func emitLog(ctx context.Context, provider *sdklog.LoggerProvider) {
	var record logapi.Record
	record.SetTimestamp(at(5))
	record.SetBody(attribute.StringValue("it happened"))
	record.SetEventName("client.event")
	record.SetSeverity(logapi.SeverityWarn)
	record.SetSeverityText("WARN")
	record.AddAttributes(attribute.Int("code", 42))
	provider.Logger("clients", logapi.WithInstrumentationVersion("1.2.3")).Emit(ctx, record)
}

func main() {
	protocol, compression, endpoint, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	ctx := context.Background()
	address := strings.TrimPrefix(endpoint, "http://")
	over := overHttp
	if protocol == "grpc" {
		over = overGrpc
	}
	to := over(ctx, address, compression == "gzip")
	described := resource.NewSchemaless(
		attribute.String("service.name", name), attribute.Int("client.number", 3))

	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(to.spans), sdktrace.WithResource(described))
	exponential := sdkmetric.NewView(sdkmetric.Instrument{Name: "sizes"}, sdkmetric.Stream{
		Aggregation: sdkmetric.AggregationBase2ExponentialHistogram{MaxSize: 160, MaxScale: 20}})
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(to.metrics)),
		sdkmetric.WithResource(described), sdkmetric.WithView(exponential))
	loggers := sdklog.NewLoggerProvider(
		sdklog.WithProcessor(sdklog.NewBatchProcessor(to.logs)), sdklog.WithResource(described))

	inParent := emitSpans(ctx, tracers)
	emitMetrics(ctx, meters)
	emitLog(inParent, loggers)
	for _, shutdown := range []func(context.Context) error{tracers.Shutdown, meters.Shutdown, loggers.Shutdown} {
		if err := shutdown(ctx); err != nil {
			log.Print(err)
		}
	}
}
