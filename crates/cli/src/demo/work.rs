//! The work that a request asks for, and that the hogs do as well: parse a JSON document of orders, add it up by
//! product, hash its bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::random::Random;

/// Orders in a victim's request: a document of about 8 KB, 30 to 60 µs of work on a current server core.
pub const ORDERS_PER_REQUEST: usize = 64;

/// Orders in a hog's document: about 1 KB, so that a poll can be cut near any length above some 10 µs.
pub const ORDERS_PER_HOG_DOCUMENT: usize = 8;

const PRODUCTS: [&str; 12] = [
    "anvil",
    "barometer",
    "compass",
    "dynamo",
    "envelope",
    "funnel",
    "gasket",
    "hinge",
    "insulator",
    "jigsaw",
    "kettle",
    "lantern",
];

#[derive(Debug, Serialize, Deserialize)]
struct Order<'a> {
    id: u64,
    #[serde(borrow)]
    customer: Cow<'a, str>,
    #[serde(borrow)]
    product: Cow<'a, str>,
    quantity: u32,
    unit_price_cents: u32,
    discount: f64,
    #[serde(borrow)]
    tags: Vec<Cow<'a, str>>,
}

#[derive(Debug, Default, Serialize)]
struct ProductTotal {
    orders: u32,
    quantity: u64,
    revenue_cents: u64,
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    orders: usize,
    revenue_cents: u64,
    products: BTreeMap<Cow<'a, str>, ProductTotal>,
    sha256: String,
}

/// A JSON document of `orders` orders that follows from `seed`.
pub fn document(seed: u64, orders: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let orders: Vec<Order<'_>> = (0..orders)
        .map(|_| Order {
            id: random.bits() >> 20,
            customer: Cow::Owned(format!("customer-{:05}", random.below(100_000))),
            product: Cow::Borrowed(PRODUCTS[random.below(PRODUCTS.len() as u64) as usize]),
            quantity: 1 + random.below(40) as u32,
            unit_price_cents: 99 + random.below(50_000) as u32,
            discount: random.below(30) as f64 / 100.0,
            tags: vec![Cow::Borrowed("express"), Cow::Borrowed("gift")],
        })
        .collect();
    // Plain structs with string keys: serialising them into memory has no way to fail.
    serde_json::to_vec(&orders).unwrap_or_default()
}

/// Parses, adds up and hashes `document`; returns the answer as JSON.
///
/// # Errors
/// The parser's message if the document is not a JSON array of orders.
pub fn summarise(document: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let orders: Vec<Order<'_>> = serde_json::from_slice(document)?;
    let mut summary = Summary {
        orders: orders.len(),
        revenue_cents: 0,
        products: BTreeMap::new(),
        sha256: hexadecimal(&Sha256::digest(document)),
    };
    for order in orders {
        let full_price = u64::from(order.quantity) * u64::from(order.unit_price_cents);
        let revenue_cents = (full_price as f64 * (1.0 - order.discount)).round() as u64;
        summary.revenue_cents = summary.revenue_cents.saturating_add(revenue_cents);
        let total = summary.products.entry(order.product).or_default();
        total.orders += 1;
        total.quantity += u64::from(order.quantity);
        total.revenue_cents = total.revenue_cents.saturating_add(revenue_cents);
    }
    serde_json::to_vec(&summary)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing into a String never fails.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_products_is_the_total() {
        let document = document(11, ORDERS_PER_REQUEST);
        let answer: serde_json::Value =
            serde_json::from_slice(&summarise(&document).expect("own document")).expect("JSON");
        assert_eq!(answer["orders"], ORDERS_PER_REQUEST);
        let products = answer["products"].as_object().expect("a map");
        let total: u64 = products
            .values()
            .map(|product| product["revenue_cents"].as_u64().expect("a number"))
            .sum();
        assert_eq!(answer["revenue_cents"], total);
        assert_eq!(answer["sha256"].as_str().map(str::len), Some(64));
    }

    #[test]
    fn same_seed_same_document_and_sizes_as_documented() {
        assert_eq!(document(1, 8), document(1, 8));
        assert_ne!(document(1, 8), document(2, 8));
        assert!((7_000..10_000).contains(&document(1, ORDERS_PER_REQUEST).len()));
        assert!((800..1_400).contains(&document(1, ORDERS_PER_HOG_DOCUMENT).len()));
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(summarise(b"{\"not\":\"orders\"}").is_err());
        assert!(summarise(b"").is_err());
    }

    #[test]
    fn hash_of_nothing_is_the_published_one() {
        assert!(hexadecimal(&Sha256::digest(b"")).starts_with("e3b0c44298fc1c149afbf4c8996fb924"));
    }
}
