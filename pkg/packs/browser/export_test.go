package browser

// ScreenshotWithin is browser.screenshot_url with another limit per page.
var ScreenshotWithin = screenshotPack
