//! CDI, Compose, Kubernetes, Cloudpods.
