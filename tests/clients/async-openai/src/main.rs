//! `async-openai-client URL TEST`: one test of async-openai against the server at URL. Its types are strict: a field that is missing,
//! or a variant that it does not know, is an error.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::responses::ResponseStreamEvent;
use futures::StreamExt;
use serde_json::{Value, json};

type Done = Result<(), Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, test] = arguments.as_slice() else { return Err("wanted: URL TEST".into()) };
    let config = OpenAIConfig::new().with_api_base(format!("{url}/v1")).with_api_key("none");
    let client = Client::with_config(config);
    match test.as_str() {
        "answers" => answers(&client).await,
        "calls" => calls(&client).await,
        "responses" => responses(&client).await,
        "completions" => completions(&client).await,
        "errors" => errors(&client).await,
        other => Err(format!("there is no test {other}").into()),
    }
}

fn request<T: serde::de::DeserializeOwned>(more: Value) -> Result<T, serde_json::Error> {
    let mut body = json!({"model": "any"});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    serde_json::from_value(body)
}

fn hi() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

async fn answers(client: &Client<OpenAIConfig>) -> Done {
    let asked = json!({"messages": hi(), "logprobs": true, "top_logprobs": 2});
    let whole = client.chat().create(request(asked.clone())?).await?;
    assert_eq!(whole.choices[0].message.content.as_deref(), Some("Hello there"));
    assert!(whole.choices[0].logprobs.is_some() && whole.usage.is_some());
    let mut stream = client.chat().create_stream(request(asked)?).await?;
    let (mut text, mut reason) = (String::new(), None);
    while let Some(chunk) = stream.next().await {
        for choice in chunk?.choices {
            text.push_str(choice.delta.content.as_deref().unwrap_or(""));
            reason = choice.finish_reason.or(reason);
        }
    }
    assert_eq!((text.as_str(), serde_json::to_value(reason)?), ("Hello there", json!("stop")));
    Ok(())
}

async fn calls(client: &Client<OpenAIConfig>) -> Done {
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]);
    let asked = json!({"messages": hi(), "tools": tools});
    let whole = client.chat().create(request(asked.clone())?).await?;
    let calls = serde_json::to_value(&whole.choices[0].message.tool_calls)?;
    let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap_or(""))?;
    assert_eq!(arguments, json!({"city": "Oslo", "days": 2}));
    let mut stream = client.chat().create_stream(request(asked)?).await?;
    let mut json = String::new();
    while let Some(chunk) = stream.next().await {
        for call in chunk?.choices.into_iter().flat_map(|choice| choice.delta.tool_calls.unwrap_or_default()) {
            json.push_str(call.function.and_then(|function| function.arguments).as_deref().unwrap_or(""));
        }
    }
    assert_eq!(serde_json::from_str::<Value>(&json)?, arguments);
    Ok(())
}

async fn responses(client: &Client<OpenAIConfig>) -> Done {
    let whole = client.responses().create(request(json!({"input": "hi"}))?).await?;
    assert_eq!(whole.output_text().as_deref(), Some("Hello there"));
    let mut stream = client.responses().create_stream(request(json!({"input": "hi"}))?).await?;
    let (mut text, mut last) = (String::new(), None);
    while let Some(event) = stream.next().await {
        let event = event?;
        if let ResponseStreamEvent::ResponseOutputTextDelta(delta) = &event {
            text.push_str(&delta.delta);
        }
        last = Some(event);
    }
    assert_eq!(text, "Hello there");
    assert!(matches!(last, Some(ResponseStreamEvent::ResponseCompleted(_))), "{last:?}");
    Ok(())
}

async fn completions(client: &Client<OpenAIConfig>) -> Done {
    let asked = json!({"prompt": "Once", "logprobs": 1, "echo": true});
    let whole = client.completions().create(request(asked.clone())?).await?;
    assert_eq!(whole.choices[0].text, "OnceHello there");
    let mut stream = client.completions().create_stream(request(asked)?).await?;
    let mut text = String::new();
    while let Some(piece) = stream.next().await {
        text.extend(piece?.choices.into_iter().map(|choice| choice.text));
    }
    assert_eq!(text, "OnceHello there");
    assert_eq!(client.models().list().await?.data.len(), 1);
    Ok(())
}

async fn errors(client: &Client<OpenAIConfig>) -> Done {
    match client.chat().create(request(json!({"messages": hi(), "n": 100}))?).await {
        Err(OpenAIError::ApiError(error)) => {
            assert!(format!("{error:?}").contains("`n`"), "{error:?}");
            Ok(())
        }
        other => Err(format!("wanted an error of the API, and not {other:?}").into()),
    }
}
