//! Images, as lists of lines.
//!
//! Called by `order`, to tell what an image holds. PTX it does not know.

use protocol::image_descriptor::{Descriptor, Kernel, Variable};
use protocol::linked_image;

/// Reads an image: lines `kernel NAME size size …`, `variable NAME bytes`, `fail LOG` and `pad`.
///
/// Parameters are aligned to their sizes. `NAME:2x1x1` wants clusters of 2 blocks, `NAME:` any, and `NAME:<4` has at most 4. `pad` makes the descriptor too long for a reply.
pub(super) fn describe(image: &[u8]) -> Result<Descriptor, String> {
    let mut descriptor = Descriptor::default();
    if linked_image::is_linked(image) {
        for part in linked_image::decode(image).map_err(|error| error.to_string())? {
            let mut part = describe(part.bytes)?;
            descriptor.kernels.append(&mut part.kernels);
            descriptor.variables.append(&mut part.variables);
        }
        return Ok(descriptor);
    }
    let text = std::str::from_utf8(image).map_err(|error| error.to_string())?;
    for line in text.trim_end_matches('\0').lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("kernel") => {
                let word = words.next().ok_or("no name")?;
                let (name, cluster) = word.split_once(':').unzip();
                let name = name.unwrap_or(word).to_owned();
                let most = cluster.and_then(|cluster| cluster.strip_prefix('<'));
                let sides: Vec<u32> = cluster
                    .unwrap_or_default()
                    .split('x')
                    .filter_map(|side| side.parse().ok())
                    .collect();
                let mut offset = 0_u32;
                let mut params = Vec::new();
                for size in words {
                    let size = size.parse::<u32>().map_err(|error| error.to_string())?;
                    offset = offset.next_multiple_of(size.min(8));
                    params.push((offset, size));
                    offset += size;
                }
                descriptor.kernels.push(Kernel {
                    name,
                    params,
                    max_threads: 512,
                    shared_bytes: 1024,
                    registers: 32,
                    required_cluster: sides.try_into().unwrap_or_default(),
                    cluster_must_be_set: (cluster.is_some() && most.is_none()).into(),
                    max_cluster: most.and_then(|most| most.parse().ok()).unwrap_or(0),
                    ..Kernel::default()
                });
            }
            Some("variable") => descriptor.variables.push(Variable {
                name: words.next().ok_or("no name")?.to_owned(),
                bytes: words
                    .next()
                    .and_then(|bytes| bytes.parse().ok())
                    .ok_or("no size")?,
                ..Variable::default()
            }),
            Some("fail") => return Err(words.collect::<Vec<_>>().join(" ")),
            Some("pad") => descriptor.kernels.extend((0..4000).map(|index| Kernel {
                name: format!("padding_{index}"),
                ..Kernel::default()
            })),
            _ => {}
        }
    }
    Ok(descriptor)
}
