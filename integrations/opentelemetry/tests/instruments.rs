//! Hazards: an instrument that says something else than the text of Prometheus, or nothing; a reading that stops the groups.

use std::collections::BTreeMap;

use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use quotient::Scheduler;
use quotient_prometheus::Exporter;

/// Every value by its name and attributes.
fn read(kept: &InMemoryMetricExporter) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let finished = kept.get_finished_metrics().unwrap();
    for metric in finished
        .last()
        .unwrap()
        .scope_metrics()
        .flat_map(|scope| scope.metrics())
    {
        let mut put = |attributes: Vec<String>, value: f64| {
            found.insert(
                format!("{}{{{}}}", metric.name(), attributes.join(",")),
                value,
            );
        };
        let text = |pair: &opentelemetry::KeyValue| format!("{}={}", pair.key, pair.value);
        match metric.data() {
            AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                gauge
                    .data_points()
                    .for_each(|point| put(point.attributes().map(text).collect(), point.value()));
            }
            AggregatedMetrics::F64(MetricData::Sum(sum)) => {
                sum.data_points()
                    .for_each(|point| put(point.attributes().map(text).collect(), point.value()));
            }
            other => panic!("{}: {other:?}", metric.name()),
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instruments_say_what_the_text_says() {
    let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
    let group = scheduler.group("tenants/acme").unwrap().weight(300);
    let group = group.max("50ms/100ms").create().unwrap();
    for _ in 0..50 {
        group
            .spawn(async { tokio::task::yield_now().await })
            .await
            .unwrap();
    }
    let figures = Exporter::new(&scheduler).record_poll_durations().unwrap();
    let kept = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder()
        .with_reader(PeriodicReader::builder(kept.clone()).build())
        .build();
    quotient_opentelemetry::register(&figures, &provider.meter("quotient"));
    provider.force_flush().unwrap();
    let found = read(&kept);
    let value = |name: &str| {
        *found
            .get(name)
            .unwrap_or_else(|| panic!("{name} is missing: {found:#?}"))
    };
    assert_eq!(value("container_spec_cpu_shares{id=/tenants/acme}"), 3072.0);
    assert_eq!(
        value("container_spec_cpu_quota{id=/tenants/acme}"),
        50_000.0
    );
    assert!(value("container_cpu_usage_seconds_total{id=/tenants/acme}") > 0.0);
    let polls = group.stats().polls as f64;
    assert_eq!(value("quotient_polls_total{id=/tenants/acme}"), polls);
    assert_eq!(
        value("quotient_run_delay_seconds_count{id=/tenants/acme}"),
        polls
    );
    assert!(value("quotient_run_delay_seconds_sum{id=/tenants/acme}") > 0.0);
    assert_eq!(value("quotient_vcpus{}"), 2.0);
    provider.shutdown().unwrap();
    scheduler.shutdown().await;
}
