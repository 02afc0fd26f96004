//! Limits inside a pod, as docs/guides/kubernetes.md says: `cargo run -p quotient --example pod`.

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quota = quotient::cgroup_quota(); // CPUs, `None` without limit
    let scheduler = quotient::Scheduler::builder().vcpus_by_quota().build()?;
    println!("{quota:?} CPUs for {} virtual ones", scheduler.vcpus());
    let tenants = scheduler.group("tenants")?;
    let tenants = match quota {
        Some(quota) => tenants.max(quotient::Cpus(quota * 0.95)), // stays below the pod's own limit
        None => tenants,
    };
    let tenants = tenants.create()?;
    let acme = tenants.child("acme").max(quotient::Share(0.2)).create()?;
    acme.spawn(async {}).await?;
    scheduler.shutdown().await;
    Ok(())
}
